"""Results that rules make on the meta device are shaped as torch's own."""

from collections.abc import Callable
from itertools import product
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from omni.kernels import shape_rules
from omni.kernels.shape_rules import ShapeRules

Operation = Callable[[Tensor], Tensor]


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


OPERATIONS: dict[str, Operation] = {
    "linear": lambda x: functional.linear(x, meta(5, 4), meta(5)),
    "layer_norm": lambda x: functional.layer_norm(x, (4,), meta(4), meta(4)),
    "gelu": functional.gelu,
    "silu": functional.silu,
    "rsqrt": torch.rsqrt,
    "square": Tensor.square,
    "neg": lambda x: -x,
    "mean": lambda x: x.mean(-1, keepdim=True),
    "mean of all": lambda x: x.mean(),
    "mean of rows": lambda x: x.mean(1, keepdim=True),
    "cat": lambda x: torch.cat((x, x, meta(2, 3, 4)), dim=-1),
    "cat of rows": lambda x: torch.cat((x, x)),
    "cat of types": lambda x: torch.cat((x, meta(2, 3, 4, dtype=torch.float32)), dim=1),
    "attention": lambda x: functional.scaled_dot_product_attention(x, meta(2, 7, 4), meta(2, 7, 6)),
    "add": lambda x: x + x,
    "add a number": lambda x: 1 + x,
    "add a row": lambda x: x + meta(4),
    "add a column": lambda x: x + meta(3, 1),
    "add a larger one": lambda x: x + meta(5, 2, 3, 4),
    "add a wider one": lambda x: meta(2, 1, 4) + x,
    "add others": lambda x: x + meta(3, 4, dtype=torch.float32),
    "add a scaled one": lambda x: x.add(x, alpha=2),
    "sub": lambda x: x - meta(1, 1, 4),
    "mul": lambda x: x * meta(2, 3, 4),
    "mul a number": lambda x: 0.5 * x,
    "normal": lambda x: torch.nn.init.normal_(x.contiguous()),
    "uniform": lambda x: torch.nn.init.uniform_(x.contiguous()),
    "mul a scalar": lambda x: x * torch.tensor(2.0, device="meta"),
}
INPUTS: dict[str, Callable[[], Tensor]] = {
    "contiguous": lambda: meta(2, 3, 4),
    "transposed": lambda: meta(2, 4, 3).transpose(1, 2),
    "cut": lambda: meta(2, 3, 8)[..., :4],
    "float32": lambda: meta(2, 3, 4, dtype=torch.float32),
    "expanded": lambda: meta(3, 4).expand(2, 3, 4),
}
ERRORS = (RuntimeError, ValueError)


@pytest.mark.parametrize(("operation", "given"), [*product(OPERATIONS, INPUTS)])
def test_a_rule_gives_the_shape_strides_and_type_of_torch(operation: str, given: str):
    run, x = OPERATIONS[operation], INPUTS[given]()
    with torch.inference_mode():
        try:
            expected = run(x)
        except ERRORS as error:  # of types that do not fit
            with ShapeRules(), pytest.raises(type(error)):
                run(x)
            return
        with ShapeRules():
            result = run(x)
    assert (result.shape, result.stride(), result.dtype) == (expected.shape, expected.stride(), expected.dtype)
    assert result.is_meta


@pytest.mark.parametrize(
    "operation", ["linear", "layer_norm", "gelu", "mean", "cat", "attention", "add a row", "mul", "normal"]
)
def test_common_operations_have_a_rule(operation: str):
    made: list[bool] = []
    rules = {function: counted(rule, made) for function, rule in shape_rules._RULES.items()}
    with patch.object(shape_rules, "_RULES", rules), torch.inference_mode(), ShapeRules():
        OPERATIONS[operation](INPUTS["contiguous"]())
    assert made == [True]


def counted(rule: Callable[..., Tensor | None], made: list[bool]) -> Callable[..., Tensor | None]:
    def count(*args: object, **kwargs: object) -> Tensor | None:
        result = rule(*args, **kwargs)
        made.append(result is not None)
        return result

    return count


def test_tensors_with_contents_are_left_to_torch():
    x = torch.tensor([[1.0, 2.0]])
    with ShapeRules():
        results = torch.cat((x, x)), x.square(), x + 1, functional.linear(x, torch.ones(1, 2)), x.mean(-1, keepdim=True)
    assert [result.tolist() for result in results] == [[[1, 2], [1, 2]], [[1, 4]], [[2, 3]], [[3]], [[1.5]]]


def test_arguments_may_have_names_and_results_may_go_in_place():
    x = meta(2, 3, 4)
    with torch.inference_mode(), ShapeRules():
        assert functional.linear(input=x, weight=meta(5, 4)).shape == (2, 3, 5)
        assert x.add(other=x).shape == x.shape
        assert functional.silu(x, inplace=True) is x


@pytest.mark.parametrize("bad", [lambda x: x + meta(5), lambda x: functional.linear(x, meta(5, 3))])
def test_shapes_that_do_not_fit_are_torch_s_error(bad: Operation):
    with ShapeRules(), pytest.raises(RuntimeError):
        bad(meta(2, 3, 4))

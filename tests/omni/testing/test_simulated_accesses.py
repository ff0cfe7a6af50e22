"""Every class of access and operation: an unordered access is reported with its operation, and one of another part is not.

Each access is of the two rows in the middle of a buffer. Another stream reads or writes the same rows, rows that overlap them, or
the rows around them.
"""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from omni.device import Phase
from tests.omni.testing.pair import fill, look, races_of

TWO = torch.ones(2, 2)
"""The operand that is added, copied and so on: of the shape of the touched rows, and used by no other phase."""
INDEX = torch.tensor([0, 1])
INDICES = torch.zeros(2, 2, dtype=torch.int64)
MASK = torch.tensor([[True, False], [True, True]])

Access = Callable[[Tensor], object]


def indices() -> Tensor:
    """Memory for the second of two outputs."""
    return torch.empty(2, 2, dtype=torch.int64)


def adam(parameters: Tensor = TWO, *, grads: Tensor = TWO, exp_avgs: Tensor = TWO, exp_avg_sqs: Tensor = TWO) -> None:
    """A fused optimizer's step, on clones of `TWO` in place of missing arguments."""
    parts = [[TWO.clone() if part is TWO else part] for part in (parameters, grads, exp_avgs, exp_avg_sqs)]
    numbers = {"lr": 0.1, "beta1": 0.9, "beta2": 0.9, "weight_decay": 0.0, "eps": 1e-8}
    fused = torch.ops.aten._fused_adam_.default
    fused(*parts, [], [torch.tensor(1.0)], amsgrad=False, maximize=False, **numbers)


IN_PLACE: dict[str, Access] = {
    "add_": lambda x: x.add_(1),
    "an operator": lambda x: x.__imul__(2),
    "copy_ that is not waited for": lambda x: x.copy_(TWO, non_blocking=True),
    "copy_ of another type": lambda x: x.copy_(TWO.double()),
    "index_put_": lambda x: x.index_put_((INDEX,), TWO),
    "index_put_ that adds": lambda x: x.index_put_((INDEX,), TWO, accumulate=True),
    "index_copy_": lambda x: x.index_copy_(0, INDEX, TWO),
    "index_add_": lambda x: x.index_add_(0, INDEX, TWO),
    "index_fill_": lambda x: x.index_fill_(0, INDEX, 3),
    "scatter_": lambda x: x.scatter_(0, INDEX[:, None].expand(2, 2), TWO),
    "scatter_add_": lambda x: x.scatter_add_(0, INDEX[:, None].expand(2, 2), TWO),
    "scatter_reduce_": lambda x: x.scatter_reduce_(0, INDEX[:, None].expand(2, 2), TWO, "amax"),
    "masked_fill_": lambda x: x.masked_fill_(MASK, 1),
    "put_": lambda x: x.put_(torch.tensor([0, 3]), torch.ones(2)),
    "assignment to a slice": lambda x: x.__setitem__((slice(None), 1), 3.0),
    "assignment by a mask": lambda x: x.__setitem__(MASK, 3.0),
    "assignment by indices": lambda x: x.__setitem__(INDEX, TWO),
    "relu": lambda x: functional.relu(x, inplace=True),
    "dropout": lambda x: functional.dropout(x, 0.5, training=True, inplace=True),
    "embedding with a largest norm": lambda x: functional.embedding(INDEX, x, max_norm=0.1),
    "batch_norm's statistics": lambda x: functional.batch_norm(torch.rand(3, 2), x[0], x[1], training=True),
    "instance_norm's statistics": lambda x: functional.instance_norm(torch.rand(3, 2, 4), x[0], x[1]),
    "the tensor's data": lambda x: x.data.add_(1),
}
OUT: dict[str, Access] = {
    "add": lambda x: torch.add(TWO, 1, out=x),
    "matmul, which is composed": lambda x: torch.matmul(TWO, TWO, out=x),
    "linear": lambda x: torch.ops.aten.linear.out(TWO, TWO, out=x),
    "softmax": lambda x: torch.softmax(TWO, -1, out=x),
    "cat": lambda x: torch.cat([TWO[:1], TWO[1:]], out=x),
    "where": lambda x: torch.where(MASK, TWO, TWO, out=x),
    "argmax": lambda x: torch.argmax(TWO, 1, out=x.view(torch.int64)[:, 0]),
    "gather": lambda x: torch.gather(TWO, 0, INDICES, out=x),
    "take_along_dim, which is composed": lambda x: torch.take_along_dim(TWO, INDICES, 0, out=x),
    "index_add": lambda x: torch.index_add(TWO, 0, INDEX, TWO, out=x),
    "zeros": lambda x: torch.zeros(2, 2, out=x),
    "a column": lambda x: torch.add(TWO[0], 1, out=x[:, 1]),
    "the first of two": lambda x: torch.max(TWO, 1, out=(x[:, 0], indices()[:, 0])),
    "the second of two": lambda x: torch.max(TWO, 1, out=(torch.empty(2), x.view(torch.int64)[:, 0])),
    "sort": lambda x: torch.sort(TWO, out=(x, indices())),
    "a list of outs": lambda x: torch.split_copy(TWO, 1, out=(torch.empty(1, 2), x[1:])),
    "a list of outs, one for each row": lambda x: torch.unbind_copy(TWO, 0, out=[x[0], x[1]]),
}
VIEWS: dict[str, Access] = {
    "view": lambda x: x.view(4).add_(1),
    "view of another type": lambda x: x.view(torch.int32).fill_(1),
    "view as bytes": lambda x: x.view(torch.uint8)[:, 2:3].fill_(1),
    "reshape": lambda x: x.reshape(4).add_(1),
    "flatten": lambda x: x.flatten().add_(1),
    "unflatten": lambda x: x.unflatten(1, (2, 1)).add_(1),
    "slice with a step": lambda x: x[:, ::2].add_(1),
    "select": lambda x: x[1].add_(1),
    "narrow": lambda x: x.narrow(0, 0, 1).add_(1),
    "transpose": lambda x: x.transpose(0, 1).add_(1),
    "expand": lambda x: x[None].expand(1, 2, 2).add_(1),
    "as_strided": lambda x: x.as_strided((2,), (2,)).add_(1),
    "split": lambda x: x.split(1)[1].add_(1),
    "unbind": lambda x: x.unbind()[1].add_(1),
    "diagonal": lambda x: x.diagonal().fill_(1),
    "unfold": lambda x: x.unfold(1, 2, 1).add_(1),
    "detach": lambda x: x.detach().add_(1),
    "alias": lambda x: torch.ops.aten.alias(x).add_(1),
    "view_as_complex": lambda x: torch.view_as_complex(x).add_(1),
    "shaped in place": lambda x: x[:1].squeeze_(0).unsqueeze_(1).add_(1),
    "another tensor set to it": lambda x: (
        torch.empty(0).set_(x.untyped_storage(), x.storage_offset(), (2, 2), (2, 1)).add_(1)
    ),
    "views of views": lambda x: x.view(4)[1:].view(3, 1).t()[:, 1:].unbind(1)[0].unsqueeze(0).zero_(),
    "a transposed view of a slice of bytes": lambda x: x.view(torch.uint8).t()[1:3].t().zero_(),
    "contiguous, where it is": lambda x: x.contiguous().add_(1),
    "to its own type": lambda x: x.to(torch.float32).add_(1),
}
SEVERAL: dict[str, Access] = {
    "_foreach_add_": lambda x: torch._foreach_add_([torch.ones(2), x], 1.0),
    "_foreach_copy_": lambda x: torch._foreach_copy_([torch.ones(2, 2), x[1]], [TWO, TWO[0]]),
    "_foreach_zero_": lambda x: torch._foreach_zero_([x[0], x[1]]),
    "a fused step's parameters": lambda x: adam(x),
    "a fused step's gradients, which it may scale": lambda x: adam(grads=x),
    "a fused step's second moments": lambda x: adam(exp_avg_sqs=x),
    "a custom operation": lambda x: torch.ops.omni_tests.raise_both(x[0], [torch.ones(2), x[1]], TWO),
}
READS: dict[str, Access] = {
    "sum": lambda x: x.sum(),
    "item": lambda x: x[0, 0].item(),
    "clone": lambda x: x.clone(),
    "a copy's source": lambda x: torch.empty(2, 2).copy_(x),
    "a copy's source, of another type": lambda x: x.to(torch.float64),
    "contiguous, where it is not": lambda x: x.t().contiguous(),
    "expanded": lambda x: x[:1].expand(4, 2).sum(),
    "the other side of out": lambda x: torch.add(x, 1, out=torch.empty(2, 2)),
    "the other side of several outs": lambda x: torch.topk(x, 1, out=(torch.empty(2, 1), indices()[:, :1])),
    "matmul": lambda x: x @ TWO,
    "linear": lambda x: functional.linear(TWO, x, TWO[0]),
    "linear's bias": lambda x: functional.linear(TWO, TWO, x[1]),
    "layer_norm's weight": lambda x: functional.layer_norm(TWO, (2,), weight=x[0]),
    "batch_norm's statistics": lambda x: functional.batch_norm(torch.rand(3, 2), x[0], x[1]),
    "attention": lambda x: functional.scaled_dot_product_attention(TWO[None], x[None], TWO[None]),
    "cat": lambda x: torch.cat([TWO, x]),
    "where": lambda x: torch.where(MASK, 1.0, x),
    "index_select": lambda x: x.index_select(0, INDEX),
    "gather": lambda x: x.gather(0, INDICES),
    "embedding": lambda x: functional.embedding(INDEX, x),
    "a scalar index": lambda x: x[INDEX[0]].sum(),
    "a mask": lambda x: x[MASK],
    "_foreach_add": lambda x: torch._foreach_add([TWO, x], 1.0),
    "_foreach_copy_'s source": lambda x: torch._foreach_copy_([torch.empty(2, 2)], [x]),
    "a custom operation's": lambda x: torch.ops.omni_tests.raise_both(torch.ones(2), [torch.ones(2)], x),
}
WRITES = {
    f"{kind}: {name}": access
    for kind, accesses in (("in place", IN_PLACE), ("out", OUT), ("view", VIEWS), ("several", SEVERAL))
    for name, access in accesses.items()
}
CASES = [pytest.param(a, True, id=name) for name, a in WRITES.items()] + [
    pytest.param(a, False, id=f"read: {name}") for name, a in READS.items()
]
each_access = pytest.mark.parametrize(("access", "writes"), CASES)
each_mode = pytest.mark.parametrize("inference", [False, True], ids=["plain", "inference"])


@pytest.fixture(scope="module", autouse=True)
def custom_operation() -> Iterator[None]:
    """As a plugin may bring one: it writes its first argument and all of a list."""
    library = torch.library.Library("omni_tests", "DEF")
    library.define("raise_both(Tensor(a!) one, Tensor(b!)[] many, Tensor by) -> ()")

    def both(one: Tensor, many: list[Tensor], by: Tensor) -> None:
        for tensor in (one, *many):
            tensor.add_(by.sum())

    library.impl("raise_both", both, "CPU")
    yield
    library._destroy()


def memory(inference: bool) -> Tensor:
    with torch.inference_mode(inference):
        return torch.ones(6, 2)


def touching(access: Access) -> Phase:
    def touch(x: Tensor) -> None:
        access(x)

    return touch


@each_mode
@each_access
def test_an_access_and_another_of_the_same_rows(access: Access, writes: bool, inference: bool):
    touch = touching(access)
    for other in (fill, look):
        for turned in (False, True):
            rows = memory(inference)[2:4]
            phases: list[tuple[Phase, Tensor]] = [(touch, rows), (other, rows)]
            races = races_of(phases[::-1] if turned else phases, inference)
            if not writes and other is look:
                assert races == [], "reads need no order"
                continue
            sides = [side for race in races for side in (race.first, race.second) if side.by == "touch"]
            assert sides, f"{other.__name__} is not reported"
            assert writes in {side.writes for side in sides}
            assert {side.stream for side in sides} == {f"stream {int(turned)}"}


@each_access
def test_an_access_and_another_of_all_the_buffer(access: Access, writes: bool):
    touch = touching(access)
    for turned in (False, True):
        whole = memory(False)
        phases: list[tuple[Phase, Tensor]] = [(touch, whole[2:4]), (fill, whole)]
        assert races_of(phases[::-1] if turned else phases)


@each_mode
@each_access
def test_accesses_to_other_rows_do_not_race(access: Access, writes: bool, inference: bool):
    touch = touching(access)
    whole = memory(inference)
    assert races_of([(fill, whole[:2]), (touch, whole[2:4]), (fill, whole[4:])], inference) == []


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("mask", [torch.bool, torch.uint8])
def test_an_index_by_a_mask_touches_the_masked_rows_alone(mask: torch.dtype):
    chosen = torch.tensor([0, 0, 1, 1, 0, 0], dtype=mask)

    def take(x: Tensor) -> None:
        torch.ops.aten.index(x, (chosen,))

    for rows, meets in ((slice(0, 2), False), (slice(2, 3), True), (slice(4, 6), False)):
        whole = memory(False)
        assert bool(races_of([(take, whole), (fill, whole[rows])], False)) == meets

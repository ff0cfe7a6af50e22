"""The least time that a decode step can take: its bytes over the bandwidth of a copy."""

from omni_ar.layers.moe import SparseMoE
from omni_ar.model import ArModel


def experts_of(model: ArModel) -> tuple[int, int]:
    """Experts of a layer, and how many of them a token uses; (0, 0) for a dense model."""
    for module in model.modules():
        if isinstance(module, SparseMoE):
            return module.experts_down.shape[0], module.top_k
    return 0, 0


def uniform_experts(experts: int, top_k: int, tokens: float) -> float:
    """Distinct experts that `tokens` use on average if each chooses `top_k` of them at random."""
    return experts * (1 - float((1 - top_k / experts) ** tokens))


def step_bytes(model: ArModel, rows: int, length: int, positions: float = 1.0) -> float:
    """Bytes that one decode step of `rows` rows of `length` tokens reads: weights, once; used experts only; keys and values.
    positions: mean number that the step runs of each row, drafts included; their keys and values are read once."""
    shape = model.shape
    experts, top_k = experts_of(model)
    share = uniform_experts(experts, top_k, rows * positions) / experts if experts else 0.0
    routed = {id(p) for m in model.modules() if isinstance(m, SparseMoE) for p in (m.experts_gate_up, m.experts_down)}
    # A table that is only looked up costs a row a token; one that is the output matrix as well is read whole.
    heads = {id(p) for name, p in model.named_parameters(remove_duplicate=False) if "head" in name}
    total, size = 0.0, 0
    for name, parameter in model.named_parameters():
        size = parameter.element_size()
        if "embed" in name and id(parameter) not in heads:
            continue
        total += parameter.nbytes * (share if id(parameter) in routed else 1.0)
    return total + rows * length * 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * size

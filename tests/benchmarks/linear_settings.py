"""Settings of linear maps, and keys of those of Qwen3-0.6B's layers."""

from omni_ar.kernels.linear.settings import StreamedSettings, TiledSettings

Setting = StreamedSettings | TiledSettings | None
ONE, TWO, THREE = (StreamedSettings(block_n=block_n, block_d=64, num_warps=1) for block_n in (1, 2, 4))
SPLIT = TiledSettings(tile_n=16, tile_d=64, slices=1, rows_left=False, num_warps=4, num_stages=2, splits=2)
US = 1e-6
QKV, OUT, GATED, DOWN = (
    f"{shape}-bfloat16"
    for shape in ("linear-N4096-D1024", "linear-N1024-D2048", "gated-N6144-D1024", "linear-N1024-D3072")
)

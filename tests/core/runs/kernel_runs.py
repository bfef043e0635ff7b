"""A run whose sides launched what a public thread shows: another tile and three times the
reductions of split products at batch 2.
"""

from core.runs.tables.kernels import KernelList, KernelRow, insert_kernels
from tests.core.runs.made_runs import header_of, writing

NARROW = "ampere_bf16_s16816gemm_bf16_32x32_sliced1x4_ldg8_f2f_stages_128x2_tn"
WIDE = "ampere_bf16_s16816gemm_bf16_32x32_sliced1x4_ldg8_f2f_stages_64x2_tn"
REDUCE = "splitKreduce_kernel<32, 16, int, __nv_bfloat16>"
UP, DOWN = "model.layers.{}.mlp.up_proj", "model.layers.{}.mlp.down_proj"


def kernel_lists():
    """Two layers; the variant's three forwards launch what the reference's one does, but for the
    tile and the reductions.
    """

    def rows(tile, reductions, forwards):
        shapes = "1x8, 8x32" if forwards == 1 else "2x8, 8x32"
        often = reductions * forwards
        result = []
        for layer in range(2):
            up = UP.format(layer)
            down = DOWN.format(layer)
            result += [
                KernelRow(up, "CUDA", tile, "aten::mm", forwards, 10.0 * forwards),
                KernelRow(down, "CUDA", REDUCE, "aten::mm", often, 2.0 * often),
                KernelRow(up, "torch", "aten::mm", shapes, forwards, 40.0),
            ]
        return tuple(result)

    return KernelList(0, rows(NARROW, 1, 1), 1, 1), KernelList(1, rows(WIDE, 3, 3), 3, 40)


ORDER = (  # of the modules that are compared, in which they run
    "model.embed_tokens",
    *(f"model.layers.0.self_attn.{name}_proj" for name in "qkvo"),
    "model.layers.0.self_attn",
    "model.layers.0.mlp.down_proj",
    "model.layers.0",
    "model.norm",
    "logits",
)


def block_lists():
    """One block of a decode of two tokens, alone and in a batch of two: the same kernels as often,
    in other shapes.
    """

    def rows(batch):
        attention = "model.layers.0.self_attn"
        result = []

        def ran(
            module,
            name,
            *shapes,
            library="torch",
            dtype="bfloat16 ",
        ):
            result.append(KernelRow(module, library, name, f"{dtype}{', '.join(shapes)}", 2, 4.0))

        def attended(keys):
            ran(
                attention,
                "aten::_scaled_dot_product_flash_attention_for_cpu",
                f"{batch}x2x1x4",
                f"{batch}x2x{keys}x4",
            )

        ran("model.embed_tokens", "aten::embedding", "64x8")
        ran("model", "aten::mul", f"{batch}x1x8")
        for name in "qkv":
            ran(f"{attention}.{name}_proj", "aten::mm", f"{batch}x8", "8x8")
        ran(attention, "aten::cat", f"{batch}x2x1x4")
        attended(1)
        ran(f"{attention}.o_proj", "aten::mm", f"{batch}x8", "8x8")
        ran("model.layers.0.mlp.down_proj", "aten::mm", f"{batch}x32", "32x8")
        ran("model.layers.0.mlp.down_proj", "SGEMM", f"T,N,8,{batch},32", library="MKL", dtype="")
        ran("model.layers.0", "aten::add", f"{batch}x1x8", f"{batch}x1x8")
        ran("model.norm", "aten::mean", f"{batch}x1x8")
        ran("lm_head", "aten::mm", f"{batch}x8", "8x64")
        attended(2)  # of the second token, whose other kernels have the shapes of the first's
        return tuple(result)

    return KernelList(0, rows(1), 2, 2), KernelList(1, rows(2), 2, 2)


def kernel_run(store, run_id="kernels", lists=None):
    header = header_of(lengths=(3,))
    with writing(store, header, run_id=run_id) as writer:
        for kernels in kernel_lists() if lists is None else lists:
            writer.put(insert_kernels, kernels)
        return writer.finish()

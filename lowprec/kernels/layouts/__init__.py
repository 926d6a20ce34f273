"""The bytes of other libraries' tensors, and back: one file per layout."""

from lowprec.kernels.layouts.compressed_tensors import (
    from_mxfp4_pack_quantized,
    from_nvfp4_pack_quantized,
    from_pack_quantized,
    to_mxfp4_pack_quantized,
    to_nvfp4_pack_quantized,
    to_pack_quantized,
)
from lowprec.kernels.layouts.gguf import from_gguf, to_gguf
from lowprec.kernels.layouts.gpt_oss import from_gpt_oss, to_gpt_oss
from lowprec.kernels.layouts.nvidia import from_blocked_128x4, to_blocked_128x4

__all__ = [
    "from_blocked_128x4",
    "from_gguf",
    "from_gpt_oss",
    "from_mxfp4_pack_quantized",
    "from_nvfp4_pack_quantized",
    "from_pack_quantized",
    "to_blocked_128x4",
    "to_gguf",
    "to_gpt_oss",
    "to_mxfp4_pack_quantized",
    "to_nvfp4_pack_quantized",
    "to_pack_quantized",
]

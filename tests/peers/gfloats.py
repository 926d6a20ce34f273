"""gfloat's names of our formats and roundings."""

from __future__ import annotations

import gfloat
import gfloat.formats

GFLOAT = {
    "bfloat16": gfloat.formats.format_info_bfloat16,
    "float16": gfloat.formats.format_info_binary16,
    "float8_e5m2": gfloat.formats.format_info_ocp_e5m2,
    "float8_e4m3fn": gfloat.formats.format_info_ocp_e4m3,
    "float6_e3m2fn": gfloat.formats.format_info_ocp_e3m2,
    "float6_e2m3fn": gfloat.formats.format_info_ocp_e2m3,
    "float4_e2m1fn": gfloat.formats.format_info_ocp_e2m1,
    "binary8p1se": gfloat.formats.format_info_p3109(8, 1),
    "binary8p3se": gfloat.formats.format_info_p3109(8, 3),
    "binary8p4sf": gfloat.formats.format_info_p3109(8, 4, domain=gfloat.Domain.Finite),
    "binary6p5se": gfloat.formats.format_info_p3109(6, 5),
}
GFLOAT_MODES = {
    "nearest-even": gfloat.RoundMode.TiesToEven,
    "nearest-away": gfloat.RoundMode.TiesToAway,
    "toward-zero": gfloat.RoundMode.TowardZero,
    "up": gfloat.RoundMode.TowardPositive,
    "down": gfloat.RoundMode.TowardNegative,
}

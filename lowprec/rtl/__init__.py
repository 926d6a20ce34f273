"""Hardware of datapaths: dot-product units in Amaranth and Verilog, proven equal to `exact`.

Needs the extra ``rtl`` (Amaranth); Verilog and fast simulation need yosys as well.
"""

from lowprec.errors import LowprecError

try:
    import amaranth as _amaranth  # noqa: F401
except ImportError:
    raise LowprecError("lowprec.rtl needs amaranth: pip install 'lowprec[rtl]'") from None

from lowprec.rtl.multi import Mode, MultiUnit, multi_unit
from lowprec.rtl.part import Port
from lowprec.rtl.simulate import simulate
from lowprec.rtl.unit import Unit, dot_unit, format_unit

__all__ = ["Mode", "MultiUnit", "Port", "Unit", "dot_unit", "format_unit", "multi_unit", "simulate"]

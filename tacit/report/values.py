"""Numbers as text, the same on the terminal, on pages and in sentences.

Bounds are rounded against us: proven ε up, audited ε and accuracy down. A claimed ε is rounded up
as well, so that it can be held against a proven one. Certificates and JSON have more digits.
"""

from __future__ import annotations

import json
import math
import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, localcontext

UNKNOWN = "—"
INFINITE = "∞"
_NAMES = {"inf": math.inf, "infinity": math.inf, "∞": math.inf, "nan": math.nan}
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
)
_METHODS = {
    "dpsgd": "DP-SGD",
    "dpftrl": "DP-FTRL",
    "batch-clipping": "Batch clipping",
    "dpsur": "DPSUR",
    "dpsgd-br": "DPSGD-BR",
    "sanitization": "Sanitization",
    "plain": "Plain SGD",
}
_WIDE = Context(prec=800)  # enough digits for every float at the places used here


def clean(text: str) -> str:
    """The text with characters that a page cannot hold replaced by a visible mark."""
    return _UNPRINTABLE.sub("\ufffd", text)


def number(value: object) -> float | None:
    """The value as a float, also for infinities spelled out in JSON; None if it is no number."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, str):
        return _NAMES.get(value.strip().lower())
    return None


def finite(value: object) -> float | None:
    """The value as a float, or None where it is not a finite number."""
    found = number(value)
    return found if found is not None and math.isfinite(found) else None


def proven(value: object, places: int = 2) -> str:
    """An upper bound on ε, rounded up; more places where two values must be told apart."""
    return _bound(value, ROUND_CEILING, places)


def claimed(value: object, places: int = 2) -> str:
    """What a paper's arithmetic gives for ε, rounded as a proven one."""
    return proven(value, places)


def audited(value: object) -> str:
    """A lower bound on ε, rounded down; a bound below zero says nothing, so it reads as zero."""
    found = number(value)
    return _bound(max(found, 0.0) if found is not None else None, ROUND_FLOOR, 2)


def delta(value: object) -> str:
    """δ rounded up to three significant digits, such as 1e-5."""
    found = number(value)
    if found is None or not math.isfinite(found):
        return _special(found)
    mantissa, mark, power = _significant(found, ROUND_CEILING, plain_from=1e-3).partition("e")
    return (mantissa.rstrip("0").rstrip(".") or "0") + mark + power


def percent(value: object) -> str:
    """A share between 0 and 1 as a percentage, rounded down."""
    found = number(value)
    if found is None or not math.isfinite(found):
        return _special(found)
    return f"{_places(_exact(found) * 100, 2, ROUND_FLOOR)}%"


def points(value: object) -> str:
    """A spread of shares in percentage points, rounded up."""
    found = number(value)
    if found is None or not math.isfinite(found):
        return _special(found)
    return str(_places(_exact(found) * 100, 2, ROUND_CEILING))


def short_percent(value: float) -> str:
    """A share as a percentage rounded down, without decimals that are zero."""
    return percent(value).rstrip("%").rstrip("0").rstrip(".") + "%"


def loss(value: object) -> str:
    """A loss with four decimals, rounded up."""
    found = number(value)
    if found is None or not math.isfinite(found):
        return _special(found)
    if abs(found) >= 1e6:
        return _significant(found, ROUND_CEILING, plain_from=0.0)
    return str(_places(_exact(found), 4, ROUND_CEILING))


def duration(value: object) -> str:
    """A number of seconds in the units one would say."""
    found = number(value)
    if found is None or not math.isfinite(found):
        return _special(found)
    if found < 1:
        return f"{found * 1000:.0f} ms"
    if found < 59.95:
        return f"{found:.1f} s"
    whole = round(found)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(found / 60)
    return f"{minutes // 60:,} h {minutes % 60:02d} min"


def count(value: object) -> str:
    """A whole number with thousands separated."""
    found = number(value)
    if found is None or not math.isfinite(found):
        return _special(found)
    return f"{found:,.0f}" if abs(found) >= 10 or found == int(found) else f"{found:.2g}"


def plain(value: object) -> str:
    """Any JSON value as text, numbers with all their digits."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) < 10**18 else f"{number(value):.6g}"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else _special(value)
    if isinstance(value, str):
        return value
    return json.dumps(value, indent=2, ensure_ascii=False)


def method(name: object) -> str:
    """A method by the name people know it by."""
    return _METHODS.get(str(name), plain(name))


def noise(value: object) -> str:
    """A noise multiplier with at most six significant digits, rounded down."""
    found = number(value)
    if found is None or not math.isfinite(found) or found == 0:
        return _special(found) if found != 0 else "0"
    exact = _exact(found)
    shown = f"{_places(exact, max(5 - exact.adjusted(), 0), ROUND_FLOOR):f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def words(key: str) -> str:
    """The name of a field as words, such as "Later field" for later_field."""
    spoken = " ".join(key.replace("_", " ").split())
    return spoken[:1].upper() + spoken[1:]


def growth(epsilon: float) -> str | None:
    """The factor e^ε rounded up, or None where it is too large to picture."""
    return f"{_places(_exact(epsilon).exp(), 2, ROUND_CEILING):,}" if epsilon <= 10 else None


def _special(value: float | None) -> str:
    if value is None or math.isnan(value):
        return UNKNOWN
    return INFINITE if value > 0 else f"-{INFINITE}"


def _exact(value: float) -> Decimal:
    """The shortest decimal that reads back as this float, which is what the JSON file says."""
    return Decimal(repr(value))


def _places(value: Decimal, places: int, rounding: str) -> Decimal:
    with localcontext(_WIDE):
        rounded = value.quantize(Decimal(1).scaleb(-places), rounding=rounding)
    return abs(rounded) if rounded.is_zero() else rounded


def _bound(value: object, rounding: str, places: int) -> str:
    found = number(value)
    if found is None or not math.isfinite(found):
        return _special(found)
    if found == 0 or 0.1 <= abs(found) < 1e6:
        return str(_places(_exact(found), places, rounding))
    return _significant(found, rounding, plain_from=1e-3)


def _significant(value: float, rounding: str, plain_from: float) -> str:
    """Three significant digits: plain between plain_from and a million, 1.23e-7 otherwise."""
    exact = _exact(value)
    if exact.is_zero():
        return "0"
    rounded = _places(exact, 2 - exact.adjusted(), rounding)
    if plain_from <= abs(value) < 1e6:
        return f"{rounded:f}"
    power = rounded.adjusted()
    return f"{_places(rounded.scaleb(-power), 2, rounding)}e{power}"

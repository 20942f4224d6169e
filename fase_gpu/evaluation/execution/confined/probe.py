"""The first job of a sandbox: can Python read its library where a job runs?"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def run(payload: None, report: Callable[[str], None]) -> None:
    """Report "ready", unless an import fails that nothing before has done."""
    import colorsys  # noqa: F401

    report("ready")

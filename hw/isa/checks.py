"""Range checks of constructor parameters. Imports nothing, so that the runtime on a board can use it without Amaranth."""

__all__ = ["check"]


def check(name: str, value: object, least: int, most: int) -> None:
    """Check a constructor parameter.

    Raises:
        ValueError: ``value`` is not an integer from ``least`` to ``most``.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} must be an integer from {least} to {most}, not {value!r}")

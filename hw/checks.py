"""What constructors say of a parameter that is out of range. Imports nothing, so that a board's runtime can, too."""

__all__ = ["check"]


def check(name: str, value: object, least: int, most: int) -> None:
    """Constructor parameters.

    Raises:
        ValueError: ``value`` is not an integer in least..most.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} must be an integer from {least} to {most}, not {value!r}")

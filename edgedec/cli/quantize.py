def quantize() -> None:
    pass

def doctor() -> None:
    pass

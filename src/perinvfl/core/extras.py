"""How to install what only some commands need."""


def how_to_install(extra: str) -> str:
    """
    >>> how_to_install("plot")
    'pip install "perinvfl[plot]", or in the project\\'s folder pip install -c constraints.txt -e ".[plot]"'
    """
    return (
        f'pip install "perinvfl[{extra}]", or in the project\'s folder pip install -c constraints.txt -e ".[{extra}]"'
    )

"""A ledger of payments."""


def settle(payments: list[int], fee: int) -> int:
    """The sum of the payments without the fee of each."""
    return sum(payments) - fee


def balance(payments: list[int], charges: list[int]) -> int:
    """What is left of the payments."""
    return sum(payments) - sum(charges)

"""What follows from equalities and choices."""

from __future__ import annotations

from procedures.statements.key_claims import CHOICES_MAX, Node, RowFacts, Value, claims_of, facts_over

A: Node = (0, "a")
B: Node = (0, "b")
X, Y, Z = Value("x"), Value(None, 5), Value("z")


def test_what_is_equal_has_the_same_values() -> None:
    """By any number of steps, from any side."""
    assert claims_of([RowFacts(equal=[(A, B)]), RowFacts(equal=[(X, B)])]) == {A: ((X,),), B: ((X,),)}
    assert claims_of([RowFacts(equal=[(A, B)])]) == {}


def test_a_choice_claims_what_all_its_sides_do() -> None:
    """A side that says nothing about a column leaves it open; what is known beside counts on every side."""
    sides = [RowFacts(equal=[(A, X)]), RowFacts(equal=[(A, B)])]
    assert claims_of([RowFacts(choices=[sides])]) == {}
    assert claims_of([RowFacts(equal=[(B, Y)], choices=[sides])])[A] == ((X, Y),)


def test_claims_of_a_choice_are_limited() -> None:
    """Each side may have several; not all combinations are needed."""
    side = RowFacts(among=[(A, (Value(f"v{at}"),)) for at in range(9)])
    assert len(claims_of([RowFacts(choices=[[side, side]])])[A]) == CHOICES_MAX


def test_facts_of_a_copy_are_about_its_own_columns() -> None:
    """Those of choices too."""
    facts = RowFacts([(A, X)], [(B, (Y, Z))], [[RowFacts([(A, B)])]])
    moved = facts_over(facts, lambda node: (node[0] + 1, node[1]))
    assert moved == RowFacts([((1, "a"), X)], [((1, "b"), (Y, Z))], [[RowFacts([((1, "a"), (1, "b"))])]])

"""Models of the description: one name for each, and no name for two."""

from __future__ import annotations

from typing import Any

from cmdlog.api.routes.named_models import NamedModels

POINT: dict[str, Any] = {"type": "object", "title": "Point", "properties": {"x": {"type": "integer", "title": "X"}}}
OTHER: dict[str, Any] = {**POINT, "properties": {"y": {"type": "integer"}}}


def test_objects_with_a_title_are_referred_to_wherever_they_are() -> None:
    """In members, arrays, unions and values of objects there is a reference to the same model."""
    models = NamedModels({})
    whole = {
        "type": "object",
        "title": "Line",
        "properties": {
            "at": POINT,
            "more": {"type": "array", "items": POINT},
            "maybe": {"anyOf": [POINT, {"type": "null"}], "default": None},
            "by_name": {"type": "object", "additionalProperties": POINT},
            "pair": {"type": "array", "prefixItems": [POINT, {"type": "string"}]},
        },
    }
    assert models.named(whole) == {"$ref": "#/components/schemas/Line"}
    assert models.schemas["Point"] == POINT
    reference = {"$ref": "#/components/schemas/Point"}
    assert models.schemas["Line"]["properties"] == {
        "at": reference,
        "more": {"type": "array", "items": reference},
        "maybe": {"anyOf": [reference, {"type": "null"}], "default": None},
        "by_name": {"type": "object", "additionalProperties": reference},
        "pair": {"type": "array", "prefixItems": [reference, {"type": "string"}]},
    }


def test_different_models_of_one_title_keep_apart() -> None:
    """The second gets a number, also beside a schema of the description's own; a scalar with a title stays where it is."""
    models = NamedModels({"Point": {"type": "string"}})
    assert models.named(POINT) == {"$ref": "#/components/schemas/Point2"}
    assert models.named(OTHER) == {"$ref": "#/components/schemas/Point3"}
    assert models.named(POINT) == {"$ref": "#/components/schemas/Point2"}
    assert models.named({"type": "string", "title": "Name"}) == {"type": "string", "title": "Name"}

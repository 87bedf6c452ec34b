"""What ``GET /v1/models`` says, which vLLM and SGLang answer alike."""

from __future__ import annotations

from art_gym.errors import did_you_mean
from art_trainer.engines.engine import ServedModel
from art_trainer.engines.transport import Transport
from art_trainer.errors import EngineError


async def served_model(transport: Transport, wanted: str | None) -> ServedModel:
    """The model of that name, or the first that is no adapter of another.

    Args:
        transport: To the server.
        wanted: The model's name on the server; ``None`` for its base model.

    Raises:
        EngineError: Where the server has none of that name.
        EngineRequestError: Where the server does not answer.
    """
    answer = await transport.get("/v1/models")
    cards = answer.get("data")
    if not isinstance(cards, list) or not all(isinstance(card, dict) and "id" in card for card in cards):
        raise EngineError(f"{transport.url}/v1/models lists no models: is it vLLM or SGLang?")
    named = [
        card for card in cards if (card.get("parent") is None if wanted is None else card["id"] == wanted)
    ]
    if not named:
        names = [str(card["id"]) for card in cards]
        raise EngineError(
            f"{transport.url} serves no model {wanted!r}{did_you_mean(str(wanted), names)}; it serves "
            f"{', '.join(names) or 'none'}"
        )
    card = named[0]
    # An adapter has the limit, and the tokenizer, of the model below it.
    base = next((other for other in cards if other["id"] == card.get("parent")), card)
    limit = base.get("max_model_len")
    return ServedModel(
        str(card["id"]), str(base.get("root") or base["id"]), limit if type(limit) is int else None
    )

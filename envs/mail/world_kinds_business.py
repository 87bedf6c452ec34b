"""Matters between a company and its customers, and its money: what is written about them."""

from __future__ import annotations

from art_gym.envs.mail.world_model import Kind

BUSINESS: tuple[Kind, ...] = (
    Kind(
        "invoice",
        ("invoice", "payment", "refund"),
        True,
        "amount",
        "person",
        opens=(
            "The {t} for {p} comes to {v}.",
            "We have put {v} on the {t} for {p}.",
            "{c} expects {v} for the {p} {t}.",
            "Attached is the {t}, {v} in total, for {p}.",
        ),
        changes=(
            "I have to correct the {t}: it is {v} now.",
            "Wrong figure on my side, the {t} is {v}.",
            "After the discount the {t} for {p} is {v}, please use that.",
        ),
        seconds=(
            "{w} approved the {t}.",
            "The {t} was signed off by {w}.",
            "It was {w} who gave the green light.",
        ),
        chatter=(
            "Please book it on the usual account.",
            "The bank has not confirmed anything yet.",
            "They pay within thirty days, in theory.",
            "The tax line looks odd to me.",
            "Can we split it over two months?",
        ),
        ask_value=("how much is the {p} {t} for the {d}", "what does the {t} for {p} with the {d} come to"),
        ask_second=("who approved the {p} {t} for the {d}", "who signed off the {t} for {p} about the {d}"),
    ),
    Kind(
        "budget",
        ("budget", "forecast", "estimate"),
        False,
        "amount",
        "person",
        opens=(
            "The {t} for {p} stands at {v}.",
            "I have planned {v} for {p} in the {t}.",
            "My {t} for {p} says {v}.",
            "For {p} the {t} allows {v}, not a cent more.",
        ),
        changes=(
            "The board looked at it again: the {t} is {v} now.",
            "New {t} after the review: {v}.",
            "Forget the old figure, {p} gets {v}.",
        ),
        seconds=(
            "{w} approved the {t} this morning.",
            "The {t} has the blessing of {w}.",
            "{w} has agreed to the {t}.",
        ),
        chatter=(
            "We spent too much in the spring.",
            "Every department wants more, as always.",
            "I would rather keep a small reserve.",
            "Overtime is not in it.",
            "Please check the sheet before Friday.",
        ),
        ask_value=("how high is the {p} {t} for the {d}", "how much money does the {t} give {p} for the {d}"),
        ask_second=("who approved the {p} {t} for the {d}", "who agreed to the {t} for {p} with the {d}"),
    ),
    Kind(
        "contract",
        ("contract", "lease", "licence"),
        True,
        "date",
        "number",
        opens=(
            "We sign the {t} for {p} on {v}.",
            "The {t} with {c} for {p} will be signed on {v}.",
            "{v} is the day we sign the {p} {t}.",
            "The lawyers want to sign the {t} for {p} on {v}.",
        ),
        changes=(
            "Signing is moved to {v}.",
            "They need longer, so we sign the {t} on {v}.",
            "New date for signing the {p} {t}: {v}.",
        ),
        seconds=(
            "The {t} runs for {w} months.",
            "It binds us for {w} months.",
            "We agreed on {w} months, no option to extend.",
        ),
        chatter=(
            "Clause seven is still open.",
            "Legal wants another look at the liability part.",
            "I do not like the wording about notice.",
            "Two copies on paper, please.",
            "Their lawyer is hard to reach.",
        ),
        ask_value=(
            "when is the {p} {t} for the {d} signed",
            "on which day do we sign the {t} for {p} about the {d}",
        ),
        ask_second=(
            "for how many months does the {p} {t} for the {d} run",
            "how many months does the {t} for {p} about the {d} bind us",
        ),
    ),
    Kind(
        "delivery",
        ("delivery", "shipment", "order"),
        True,
        "date",
        "number",
        opens=(
            "The {p} {t} arrives on {v}.",
            "{c} gets the {t} for {p} on {v}.",
            "The carrier promised the {p} {t} for {v}.",
            "Expect the {t} for {p} on {v}.",
        ),
        changes=(
            "The {t} is late, it comes on {v}.",
            "Customs held it up, the new day is {v}.",
            "The carrier now says {v} for the {t}.",
        ),
        seconds=("Unload at gate {w}.", "The truck goes to gate {w}.", "Gate {w} is free for the {t}."),
        chatter=(
            "Somebody has to count everything.",
            "The driver speaks no English.",
            "Keep the papers dry, please.",
            "Two of the boxes were damaged last time.",
            "The warehouse closes early on Friday.",
        ),
        ask_value=(
            "when does the {p} {t} with the {d} arrive",
            "on which day do we get the {t} for {p} with the {d}",
        ),
        ask_second=(
            "at which gate is the {p} {t} with the {d} unloaded",
            "which gate takes the {t} for {p} with the {d}",
        ),
    ),
    Kind(
        "audit",
        ("audit", "inspection", "survey"),
        True,
        "date",
        "person",
        opens=(
            "The {p} {t} is on {v}.",
            "They come for the {t} at {p} on {v}.",
            "Please keep {v} free for the {p} {t}.",
            "The {t} of {p} has been set for {v}.",
        ),
        changes=(
            "The {t} has been put off to {v}.",
            "They asked for {v} instead.",
            "New day for the {t} at {p}: {v}.",
        ),
        seconds=("{w} will do the {t}.", "They send {w}.", "The {t} is in the hands of {w}."),
        chatter=(
            "All folders must be on the shelf.",
            "Last year they found three gaps.",
            "Answer only what is asked.",
            "Coffee helps, it always does.",
            "The list of open points is long.",
        ),
        ask_value=(
            "on which day is the {p} {t} of the {d}",
            "when do they come for the {t} at {p} about the {d}",
        ),
        ask_second=("who does the {p} {t} of the {d}", "who is sent for the {t} at {p} about the {d}"),
    ),
    Kind(
        "complaint",
        ("complaint", "claim", "warranty"),
        True,
        "amount",
        "person",
        opens=(
            "{c} wants {v} back, see the {t} on {p}.",
            "The {t} about {p} is worth {v}.",
            "They put {v} on the {p} {t}.",
            "A {t} over {v} came in for {p}.",
        ),
        changes=(
            "They changed the {t} to {v}.",
            "After my call the {t} is at {v}.",
            "The sum in the {p} {t} is {v} now.",
        ),
        seconds=("{w} handles the {t}.", "{w} will answer them.", "I gave the {t} to {w}."),
        chatter=(
            "They are angry, and I see why.",
            "The photos are not pretty.",
            "Please stay polite.",
            "We should have called them first.",
            "Insurance may pay some of it.",
        ),
        ask_value=(
            "how much do they want in the {p} {t} about the {d}",
            "what is the {t} on {p} with the {d} worth",
        ),
        ask_second=("who handles the {p} {t} about the {d}", "who answers the {t} on {p} with the {d}"),
    ),
)

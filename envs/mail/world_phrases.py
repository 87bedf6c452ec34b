"""How the people of a generated company write: greetings, asides, sign-offs and small talk.

Slots: ``{g}`` the reader's first name, ``{p}`` project, ``{t}`` topic, ``{c}`` customer, ``{l}`` place,
``{x}`` and ``{y}`` matters of private life, ``{n}`` another colleague's first name, ``{day}`` a
weekday, ``{m}`` a month.
"""

from __future__ import annotations

GREETINGS: tuple[str, ...] = (
    "Hi {g},",
    "Hello {g},",
    "Dear {g},",
    "{g},",
    "Good morning {g},",
    "Hey {g},",
    "Hi all,",
    "Dear colleagues,",
    "Hello everyone,",
    "Hi {g} and all,",
    "Morning,",
    "Good evening {g},",
    "Dear {g} and team,",
    "",
)

SIGN_OFFS: tuple[str, ...] = (
    "Best,",
    "Best regards,",
    "Kind regards,",
    "Cheers,",
    "Thanks,",
    "Many thanks,",
    "Greetings,",
    "Yours,",
    "Have a good day,",
    "Talk soon,",
    "Thank you,",
    "See you,",
    "",
)

OPENERS: tuple[str, ...] = (
    "Just a quick word on {p}.",
    "I hope you are well.",
    "Sorry to bother you again.",
    "As promised, here is the news.",
    "Good news for once.",
    "I am afraid there is news.",
    "Following our call on {day}, a short note.",
    "{n} asked me to write to you.",
    "Before I forget it:",
    "I know you are busy, so I will be short.",
    "Thank you for the quick answer.",
    "You asked about the {t}.",
    "A word about the {t} for {p}.",
    "This is about {p} once more.",
    "Back at my place, with a clear head.",
    "I had a look at the {t}.",
    "You may have heard it from {n} already.",
    "We spoke about {p} at the coffee machine.",
    "Let me sum up where we are with {p}.",
    "One more thing on the {t}.",
)

ASIDES: tuple[str, ...] = (
    "I am at the {x} until noon.",
    "Sorry for the delay, the {x} kept me busy.",
    "I was in {l} for the {x}.",
    "After the {x} I will be back at my place.",
    "The {x} in {l} was lovely, by the way.",
    "See you at the {x} on {day}.",
    "Between the {x} and the {y} I found an hour for this.",
    "My phone is off during the {x}.",
    "How was the {x}?",
    "I still have your ticket for the {x}.",
    "On {day} I am away because of the {x}.",
    "We can talk at the {x}.",
    "I write this from the train to {l}.",
    "The weather in {l} is awful.",
    "{n} told me so at the {x}.",
    "Did you enjoy the {x} in {l}?",
    "The {x} was cancelled, so I have time.",
    "No {x} for me this year, I fear.",
    "I am in {l} until {day}.",
    "My daughter has her {x} on {day}.",
    "My son wants to go to the {x} in {m}.",
    "The {x} and the {y} fall on the same day.",
    "Remind me to tell you about the {x}.",
    "Half the team is at the {x} on {day}.",
)

CHATTER: tuple[str, ...] = (
    "I will call you on {day}.",
    "Let me know what you think.",
    "I have no strong view on this.",
    "It can wait until {day}.",
    "Please keep it between us for now.",
    "{n} knows more than I do.",
    "I will send the file later today.",
    "We should not make this bigger than it is.",
    "It is the same story as in {m}.",
    "I would go ahead.",
    "Can we decide this before {day}?",
    "That is all I have for now.",
    "I copied {n} so that nobody is surprised.",
    "If in doubt, ask {n}.",
    "You will find the rest in the shared folder.",
    "{c} has been patient so far.",
    "I will be back in the office on {day}.",
    "It took longer than planned.",
    "To be honest, I expected worse.",
    "Let us not lose the week over it.",
    "The rest is fine.",
    "Nothing else has changed.",
    "I like the idea.",
    "I do not like it, but we can live with it.",
    "Please answer by {day}.",
    "We have done this before and it went well.",
    "A short call would be better than ten mails.",
    "I still wait for a word from {c}.",
    "The team at {p} did a good job.",
    "{n} sends greetings.",
)

ANSWERS: tuple[str, ...] = (
    "Yes, fine with me.",
    "I have seen it, thank you.",
    "No objections from here.",
    "That works.",
    "Understood.",
    "I am not so sure about that.",
    "Not what I remember, but fine.",
    "Thanks for the update.",
    "Good point.",
    "I asked around and here is what I know.",
    "Sorry, I missed your mail.",
    "Agreed.",
    "Let me think about it.",
    "That is new to me.",
    "You are right, of course.",
    "I had hoped for something else.",
)

NUDGES: tuple[str, ...] = (
    "Any news on the {t}?",
    "Have you had time for the {t}?",
    "I still need your answer on {p}.",
    "Just checking where we stand with the {t}.",
    "Did my last mail reach you?",
    "Please do not let this one slip.",
    "It is {day} and I have heard nothing.",
    "Should I ask {n} instead?",
)

FORWARDS: tuple[str, ...] = (
    "For your information, see below.",
    "I think this is one for you.",
    "Can you look at this, please?",
    "Passing this on, I have no time for it.",
    "Please see what {c} or our people wrote.",
    "You should know about this.",
    "This landed with me by mistake.",
    "What do you make of it?",
)

#: Every subject names project and topic; ``{P}`` and ``{T}`` are the capitalised forms.
SUBJECTS: tuple[str, ...] = (
    "{P} {t}",
    "{T} for {P}",
    "{P}: {t}",
    "{T}, {P}",
    "About the {P} {t}",
    "{P} {t} and the {d}",
    "{T} {P}: {d}",
    "Question on the {t} for {P}",
    "News on the {P} {t}",
    "{P}, {t}, {d}",
    "The {d} and the {P} {t}",
    "Quick word on {P}: {t}",
    "{P} ({c}): {t}",
    "Your mail about the {P} {t}",
    "{T} of {P} again",
)

STATUS_LINES: tuple[str, ...] = (
    "{p} is at {v} percent.",
    "We have done {v} percent of {p}.",
    "Progress on {p}: {v} percent.",
)
STATUS_MORE: tuple[str, ...] = (
    "There are {w} open points.",
    "{w} points are still open.",
    "The list of open points stands at {w}.",
)

#: Company-wide reminders: a subject and its body, sent again and again with other dates.
REMINDERS: tuple[tuple[str, str], ...] = (
    ("Reminder: timesheets", "Please hand in your timesheets by {v}. Late ones go to {n}."),
    (
        "Reminder: expenses",
        "Expenses for {m} must be in by {v}, with receipts. Ask {n} if the form is stuck.",
    ),
    ("Canteen news", "The canteen has a new menu from {v}. {n} tried the soup and lived."),
    ("Fire drill", "There will be a fire drill on {v}. Please leave by the stairway and follow {n}."),
    ("Newsletter", "The newsletter for {m} is out. {n} won the photo prize; the next one closes on {v}."),
    ("Password change", "Your password runs out on {v}. {n} at the help line can reset it."),
)

EXTENSION_LINES: tuple[str, ...] = (
    "{f} has a new extension: {v}.",
    "You reach {f} at extension {v} from now on.",
    "New extension for {f}: {v}.",
)
SEAT_LINES: tuple[str, ...] = (
    "{f} sits in office {v} now.",
    "You find {f} in office {v}.",
    "The new office of {f} is number {v}.",
)

#: Sentences that hold the thing a mail is about. They read well with one thing and with many.
DETAIL_SENTENCES: tuple[str, ...] = tuple(
    line.strip()
    for line in """
    Nobody has looked at the {d} so far.
    I am still worried about the {d}.
    We also talked about the {d} for a while.
    Please do not forget the {d}.
    The {d} came up again.
    What about the {d}?
    Has anyone checked the {d}?
    The question of the {d} is still open.
    I need a decision on the {d}.
    They promised to replace the {d}.
    The {d} cost more than we thought.
    The {d} went missing for two days.
    It would help to see the {d} first.
    With the {d} we had bad luck.
    Someone should measure the {d} again.
    I saw the {d} myself and was not impressed.
    Without the {d} there is no point in going on.
    We could do it without the {d}.
    My only doubt concerns the {d}.
    As for the {d}, I would wait.
    The supplier wrote to me about the {d}.
    They sent the wrong {d}.
    The new {d} arrived yesterday.
    The old {d} must go.
    We ordered the {d} twice by mistake.
    The {d} got wet.
    I left the {d} with the guard.
    Half of the trouble comes from the {d}.
    Can you take care of the {d}?
    Who pays for the {d}?
    I put the {d} on the list.
    Please add the {d} to your notes.
    The customer asked about the {d} three times.
    For the {d} we have a better offer.
    I took a picture of the {d} for you.
    The {d} looked fine to me.
    There was a joke about the {d}, you had to be there.
    The safety people do not like the {d}.
    The colour of the {d} is wrong.
    The {d} did not pass the check.
    Let us keep the {d} out of it.
    The same goes for the {d}.
    I learned more about the {d} than I ever wanted.
    They want to borrow the {d} from us.
    The {d} turned up in the cellar.
    """.strip().splitlines()
)

DETAIL_AND_PROJECT: tuple[str, ...] = (
    "For {p} we also need the {d}.",
    "The {d} at {p} worry me.",
    "On {p}, the {d} took most of the day.",
    "The {p} people asked for the {d}.",
    "At {p} they found the {d} in bad shape.",
    "{p} cannot go on without the {d}.",
    "Is the {d} part of {p} or not?",
    "The {d} came with the {p} papers.",
    "Talking of {p}: the {d} were not on the plan.",
    "The {t} also covers the {d}.",
    "In the {t} there is a line about the {d}.",
    "I read the {t} twice and still miss the {d}.",
    "The {d} should be in the {t} too.",
    "Does the {t} say anything on the {d}?",
    "{c} asked about the {d} again.",
    "{c} would like to see the {d} first.",
    "The {d} for {c} will have to wait.",
)

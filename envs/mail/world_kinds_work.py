"""Matters of everyday work: what is written about them."""

from __future__ import annotations

from art_gym.envs.mail.world_model import Kind

WORK: tuple[Kind, ...] = (
    Kind(
        "meeting",
        ("meeting", "kickoff", "standup"),
        False,
        "time",
        "number",
        opens=(
            "The {p} {t} starts at {v}.",
            "Let us hold the {t} for {p} at {v}.",
            "I booked the {t} for {p} at {v}.",
            "Can everybody make {v} for the {p} {t}?",
        ),
        changes=(
            "The {t} is now at {v}.",
            "Too many clashes, we start the {t} at {v}.",
            "Small change: {v} instead, same link.",
        ),
        seconds=("We are in room {w}.", "The {t} is in room {w}.", "Room {w} is ours for the {t}."),
        chatter=(
            "Please bring your own numbers.",
            "I will take notes this time.",
            "No slides, I beg you.",
            "Half an hour should do.",
            "If you cannot come, send somebody who decides.",
        ),
        ask_value=(
            "at what time does the {p} {t} about the {d} start",
            "when does the {t} for {p} on the {d} begin",
        ),
        ask_second=(
            "in which room is the {p} {t} about the {d}",
            "what is the room number of the {t} for {p} on the {d}",
        ),
    ),
    Kind(
        "travel",
        ("travel", "visit", "tour"),
        True,
        "time",
        "place",
        opens=(
            "For the {p} {t} we leave at {v}.",
            "Our {t} for {p} begins at {v} at the main station.",
            "The car for the {p} {t} comes at {v}.",
            "Departure for the {p} {t} is {v} sharp.",
        ),
        changes=(
            "The line changed the timetable, we leave at {v}.",
            "New departure: {v}.",
            "We have to leave at {v}, sorry.",
        ),
        seconds=("The hotel is in {w}.", "We sleep in {w}.", "I booked rooms in {w} for the {t}."),
        chatter=(
            "Receipts go to Finance, please.",
            "Pack something warm.",
            "{c} will pick us up at the gate.",
            "I hope the strike is over by then.",
            "Second class is fine with me.",
        ),
        ask_value=(
            "at what time do we leave for the {p} {t} about the {d}",
            "what is the departure time of the {t} for {p} with the {d}",
        ),
        ask_second=(
            "in which town is the hotel of the {p} {t} about the {d}",
            "where do we sleep on the {t} for {p} with the {d}",
        ),
    ),
    Kind(
        "incident",
        ("outage", "incident", "leak"),
        False,
        "time",
        "person",
        opens=(
            "The {p} {t} began at {v}.",
            "Since {v} we have had the {t} at {p}.",
            "First alert about the {t} at {p} came at {v}.",
            "At {v} the {t} hit {p}.",
        ),
        changes=(
            "The logs say the {t} began at {v}, not what I wrote.",
            "Corrected start of the {t}: {v}.",
            "It began at {v}, the first report was wrong.",
        ),
        seconds=(
            "{w} fixed it in the end.",
            "{w} found the cause and repaired it.",
            "Thank {w}, who fixed the {t}.",
        ),
        chatter=(
            "Please no blame, only facts.",
            "The night shift did well.",
            "We still owe the customers a word.",
            "The cause sounds silly but is not.",
            "I will write it all down for next week.",
        ),
        ask_value=(
            "at what time did the {p} {t} with the {d} begin",
            "when did the {t} at {p} about the {d} start",
        ),
        ask_second=("who fixed the {p} {t} with the {d}", "who repaired the {t} at {p} about the {d}"),
    ),
    Kind(
        "hiring",
        ("interview", "vacancy", "candidate"),
        False,
        "date",
        "person",
        opens=(
            "We talk about the {p} {t} on {v}.",
            "The {t} for {p} is planned for {v}.",
            "I have {v} for the {p} {t}, fine with you?",
            "People want to see the {t} for {p} on {v}.",
        ),
        changes=(
            "We have to move it to {v}.",
            "Somebody fell ill, the {t} is on {v}.",
            "The new day for the {p} {t} is {v}.",
        ),
        seconds=("{w} leads the talk.", "{w} will ask most of the questions.", "I asked {w} to lead it."),
        chatter=(
            "The letter was charming.",
            "Salary is not a topic yet.",
            "We had forty letters, most of them bad.",
            "Two years on a site would help.",
            "Please read the papers before.",
        ),
        ask_value=(
            "on which day is the {p} {t} for the {d} job",
            "when do we see the {t} for {p} with the {d} job",
        ),
        ask_second=(
            "who leads the talk about the {p} {t} for the {d} job",
            "who asks the questions at the {t} for {p} with the {d} job",
        ),
    ),
    Kind(
        "training",
        ("training", "course", "briefing"),
        False,
        "number",
        "place",
        opens=(
            "The {p} {t} has {v} seats.",
            "There is room for {v} people in the {t} for {p}.",
            "We can take {v} people for the {p} {t}.",
            "I planned the {t} for {p} for {v} heads.",
        ),
        changes=(
            "The {t} now takes {v} people.",
            "We found another hall: {v} seats.",
            "Now it is {v} seats for the {p} {t}.",
        ),
        seconds=("It takes place in {w}.", "We do it in {w} this year.", "The {t} is held in {w}."),
        chatter=(
            "Bring a laptop.",
            "The teacher is good, I heard her twice.",
            "Nobody gets a certificate.",
            "New colleagues first, please.",
            "There will be a test at the end.",
        ),
        ask_value=(
            "how many seats has the {p} {t} about the {d}",
            "how many people can join the {t} for {p} on the {d}",
        ),
        ask_second=("in which town is the {p} {t} about the {d}", "where is the {t} for {p} on the {d} held"),
    ),
    Kind(
        "release",
        ("release", "rollout", "patch"),
        False,
        "date",
        "number",
        opens=(
            "The {p} {t} goes out on {v}.",
            "We ship the {t} for {p} on {v}.",
            "{v} is set for the {p} {t}.",
            "Tests permitting, the {t} of {p} is live on {v}.",
        ),
        changes=(
            "The tests failed, the {t} goes out on {v}.",
            "We shift the {t} to {v}.",
            "Ship date for the {p} {t} is now {v}.",
        ),
        seconds=("It is build {w}.", "The build number is {w}.", "Build {w} is the one that goes out."),
        chatter=(
            "The notes need a native speaker.",
            "Support wants a week of warning.",
            "No changes on a Friday, please.",
            "We can still roll back.",
            "The old screen is gone for good.",
        ),
        ask_value=(
            "when does the {p} {t} with the {d} go out",
            "on which day do we ship the {t} of {p} for the {d}",
        ),
        ask_second=(
            "which build is the {p} {t} with the {d}",
            "what is the build number of the {t} of {p} for the {d}",
        ),
    ),
    Kind(
        "office",
        ("relocation", "desk", "parking"),
        False,
        "number",
        "date",
        opens=(
            "The {p} {t} is about room {v}.",
            "For the {t} the {p} team gets room {v}.",
            "Room {v} goes to the {p} people, see the {t} plan.",
            "On the {t} plan {p} is in room {v}.",
        ),
        changes=(
            "The plan changed, it is room {v}.",
            "Not that one, take room {v}.",
            "Facilities gave {p} room {v} instead.",
        ),
        seconds=("The boxes move on {w}.", "We move on {w}.", "The movers come on {w}."),
        chatter=(
            "Please label your boxes.",
            "The light there is better.",
            "Nobody wants the place by the door.",
            "Plants move last.",
            "The key is at the front office.",
        ),
        ask_value=(
            "which room does the {t} plan give {p} for the {d}",
            "what is the room number in the {p} {t} mail about the {d}",
        ),
        ask_second=(
            "on which day do we move in the {p} {t} with the {d}",
            "when do the movers come for the {t} of {p} with the {d}",
        ),
    ),
)

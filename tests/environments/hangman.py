"""Hangman with words of four letters."""

import gymnasium as gym

from art_gym import Outcome, Task, TaskSet, TextEnv, ToolError, tool

WORDS = """
able acid army atom aunt away baby band bank bath bear beer bell belt bird blue boat body bone book
born bowl cake call calm card care case chef chin city clay coal coat code coin cold cook copy corn
cost dark date deal deep deer desk dice dirt door dose dust duty east edge envy exam face fact fair
farm fear film fire fish flag flat foam fold food foot fork fuel game gate gift girl glad goal goat
gold golf good gray hair half hall hand harm head heat herb hero hill home hook hope horn hour iron
item jazz joke jump jury keen king knee knot lake lamp land lawn leaf lens life lime line lion list
load loan lock luck lung mail math mask meal meat menu milk mind mint moon nail name navy neck nest
news nose note oven pack page pain pale park path pear pine pipe plan poem pole pond pool port rain
read rice ring road rock roof room root rope rose rule sail salt sand seat seed ship shoe shop silk
skin snow soap sock
""".split()
TASKS = TaskSet(
    Task(word, "", "test" if n % 5 == 0 else "train", {"word": word}) for n, word in enumerate(WORDS)
)


class Hangman(TextEnv):
    """Find a word letter by letter; eight misses lose."""

    instructions = "Find the hidden word. Guess one letter in each turn; eight misses and you have lost."

    def __init__(self, split: str = "train", render_mode: str | None = None) -> None:
        super().__init__(TASKS, split=split, max_turns=12, render_mode=render_mode)

    def begin(self, task: Task) -> str:
        self.guessed: list[str] = []
        return self.board()

    def board(self) -> str:
        word = self.task.data["word"]
        shown = " ".join(letter if letter in self.guessed else "_" for letter in word)
        missed = " ".join(letter for letter in self.guessed if letter not in word)
        return f"Word: {shown} Missed: {missed or 'none'}"

    def observation_after_error(self) -> str:
        return self.board()

    @tool
    def guess(self, letter: str) -> Outcome:
        """Guess a letter.

        Args:
            letter: One letter from a to z.
        """
        letter = letter.lower()
        if len(letter) != 1 or not "a" <= letter <= "z":
            raise ToolError("guess one letter from a to z")
        if letter in self.guessed:
            raise ToolError(f"{letter} was guessed before")
        self.guessed.append(letter)
        word = self.task.data["word"]
        if all(each in self.guessed for each in word):
            return Outcome(f"You found it: {word}", {"found": 1.0}, ends=True, success=True)
        if sum(each not in word for each in self.guessed) == 8:
            return Outcome(f"You lost. The word was {word}.", ends=True)
        return Outcome(self.board(), {"letter": 0.1 if letter in word else 0.0})


gym.register("small/Hangman-v0", entry_point=Hangman)

"""Hangman with words of four letters."""

import gymnasium as gym

from art_gym import Outcome, Task, TaskSet, TextEnv, ToolError, tool

WORDS = """
able acid aged also area army atom aunt away baby back bake bald ball band bank bare barn base bath beam bean
bear beat beef beer bell belt bend bent best bike bill bind bird bite blow blue boat body boil bold bolt bomb
bond bone book boot born boss both bowl brow bulb bull burn bush busy cafe cage cake call calm camp card care
cart case cash cast cave cell chef chin chip city clay clip club coal coat code coin cold come cook cool cope
copy cord core cork corn cost crab crew crop crow cube cure dark data date dawn days dead deaf deal dear debt
deck deep deer desk dial dice diet dirt dish dive dock door dose down drag draw drop drum duck dust duty each
earn ease east easy edge envy even evil exam exit face fact fade fail fair fall fame farm fast fate fear feed
feel fees file fill film find fine fire firm fish five flag flat flow foam fold folk fond food foot fork form
fort four free frog from fuel full fund game gate gear gift girl give glad goal goat gold golf good gown grab
gray grow gulf hair half hall hand hang hard harm hate have head heal heap hear heat help herb herd hero hide
high hill hint hire hold hole holy home hook hope horn host hour huge hunt hurt icon idea inch into iron item
jail jazz join joke jump jury just keen keep kick kind king kiss kite knee knot know lack lady lake lamb lamp
land lane last late lawn lazy lead leaf leak lean left lens less life lift like lime line link lion list live
load loaf loan lock long look loop lord lose loss loud love luck lung made mail main make male many mark mask
mass math maze meal mean meat meet melt menu mild mile milk mind mine mint miss mode mood moon more most move
much nail name navy near neat neck need nest news next nice nine noon norm nose note noun oath obey odor once
only oven over pace pack page pain pair pale palm park part pass past path peak pear peel pick pile pine pink
pint pipe plan play plot plug poem poet pole pond pool poor port post pour pray pull pump pure push quit race
rack rail rain rank rare rate read real rear rent rest rice rich ride ring rise risk road rock role roof room
root rope rose rude rule rush safe sail salt same sand save seal seat seed seek sell send shed ship shoe shop
shot show shut sick side sign silk sing sink site size skin slip slow snow soap sock soft soil sold song soon
sort soul soup spot star stay stem step stir stop such suit sure swim tail take tale talk tall tank tape task
team tear tell tent term test text then thin tide tidy tile time tiny tire toad told tone tool tour town trap
tray tree trip true tube tune turn twin type ugly unit upon user vast verb very vest view vote wage wait wake
walk wall want warm wash wave weak wear week well west what when wide wife wild wind wine wing wire wise wish
wolf wood wool word work worm wrap yard yarn year yoga your zero zone
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

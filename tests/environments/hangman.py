"""Hangman with words of four letters."""

import gymnasium as gym

from art_gym import Outcome, Task, TaskSet, TextEnv, ToolError, tool

WORDS = """
able acid aged ally army atom auto away axis back bake ball band bare bark barn bath bead bean bear beef beer
bell bend bent bike bill bird bite blow blur boat boil bold bone book boot born boss bowl brag bulk bull burn
bust busy cage cake call calm camp cape card cart case cast cave cell chef chin city clan claw clay clip clue
coal code coil cold come cone cool cope cord core corn cost crab crop crow cult cure dark dash data dawn deaf
dear debt deed deep deer dial dice dime dirt dish dive dock dome door dove down draw drip drop duck dull dusk
dust each earn east echo edge envy epic evil exam exit fact fade fair fall fang farm fast fawn fear feel felt
file fill film fine fire fish fist flag flat flea flow foam fold folk fool foot fork fort foul free frog full
fund fuse game gate gear germ girl give glad glue goal gold golf gown grab gram grid grim grip grow guru hail
hair hall hand hard harm hate hawk haze heal heap heat heel help herb herd hide high hint hire hold hole home
hook hope host hour hunt hurt icon inch iron jail jazz joke jump junk just keen kick kind kite knee knot lace
lady lamb lamp lane lava lawn lead leaf lean leap lend lens lift limb lime link lion live load loaf lobe lock
long look lord lose loud luck lump lure mail make mall malt many mark mass mast math maze meal melt menu mice
mild milk mill mind mint miss mode mole mood moon more moth move mule muse myth nail name near neat need nest
next nice nine noon nose noun numb obey ogre oily once only oral oven pace pack page pair pale park part past
path peak peel pest pier pile pink pint pipe play plea plow plug poet pole poll pony pool pope pork pose post
pour prey pull pure push quiz race rack rage raid rain ramp rare rate read rear rent rice rich ring riot ripe
risk road robe rock roll roof room rope rose rude ruin rush rust safe sail sale same sand scan scar seal seed
self shed ship shop show shut side sign sing sink size skin skip slim slip snap snow sock soda sofa soil sole
soon sore soul soup sour spot star stem step stir stop such sure swan tail take talk tall tank task taxi tear
tent test text thin tidy tile tiny tire toll tomb tone tour town tray tree trip true tube tune turn twin type
unit upon urge vain vary vast veil vest view vine vote wage wake walk wand want warm wave weak weed week west
whip wide wild will wine wing wipe wire wise wolf wood word work wrap yard yarn yell yoga zero zone
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

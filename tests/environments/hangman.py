"""Hangman with words of four letters."""

import gymnasium as gym

from art_gym import Outcome, Task, TaskSet, TextEnv, ToolError, tool

WORDS = """
able acid acre aged ally amid army atom aunt auto away axis baby back bake bald ball band bank bare bark barn
base bath bead beam bean bear beat beef beer bell belt bend bent best bike bill bind bird bite blow blue blur
boat body boil bold bolt bone book boot bore born boss both bowl brag bulb bulk bull burn bush bust busy cafe
cage cake calf call calm camp cane cape card care cart case cash cast cave cell chat chef chin chip city clan
clap claw clay clip club clue coal coat code coil coin cold come cone cook cool cope copy cord core cork corn
cost crab crew crop crow cube cult cure curl dark dash data date dawn deaf deal dear debt deck deed deep deer
desk dial dice diet dime dirt disc dish dive dock doll dome door dose dove down drag draw drip drop drum duck
dull dune dusk dust duty each earn east easy echo edge edit envy epic even evil exam exit face fact fade fail
fair fall fame fang farm fast fate fawn fear feed feel felt fern file fill film find fine fire firm fish fist
five flag flat flea flip flow foam foil fold folk food fool foot fork form fort foul four free frog fuel full
fund fuse gain game gate gaze gear germ gift girl give glad glow glue goal goat gold golf good gown grab gram
gray grid grim grin grip grow gulf guru hail hair half hall hand hang hard harm harp hate hawk haze head heal
heap hear heat heel helm help herb herd hero hide high hill hint hire hive hold hole home hood hook hope horn
host hour huge hunt hurt icon idea inch iron item jail jazz jean joke jump junk jury just keen keep kick kind
king kite knee knot know lace lady lake lamb lamp land lane lava lawn lazy lead leaf leak lean leap left lend
lens lift like limb lime line link lion list live load loaf loan lobe lock loft long look loop lord lose loud
love luck lump lung lure mail main make mall malt mane many mark mask mass mast mate math maze meal meat melt
menu mess mice mild mile milk mill mind mine mint miss mist mode mole monk mood moon more moss moth move much
mule muse must myth nail name navy near neat neck need nest news next nice nine node noon nose note noun numb
oath obey ogre oily omen once only open oral oven over pace pack page pain pair pale palm park part pass past
path peak pear peel pest pick pier pile pine pink pint pipe plan play plea plot plow plug poem poet pole poll
pond pony pool poor pope pork port pose post pour pray prey pull pump pure push quit quiz race rack raft rage
raid rail rain ramp rank rare rate read real rear rent rest rice rich ride ring riot ripe rise risk road roar
robe rock role roll roof room root rope rose ruby rude ruin rule rush rust safe sage sail sale salt same sand
save scan scar seal seat seed self send shed ship shoe shop show shut sick side sign silk sing sink site size
skin skip slam slim slip slow snap snow soap sock soda sofa soft soil sole song soon sore sort soul soup sour
spin spot star stay stem step stew stir stop such suit sure swan swim tail take tale talk tall tank tape task
taxi team tear tent term test text thin tide tidy tile time tiny tire toad toll tomb tone tool tour town trap
tray tree trim trip true tube tuna tune turn twig twin type ugly unit upon urge used vain vary vase vast veil
vein vest view vine void vote wage wait wake walk wall wand want warm wash wave weak wear weed week well west
whip wide wife wild will wind wine wing wink wipe wire wise wish wolf wood wool word work worm wrap yard yarn
year yell yoga yolk zero zone
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

"""Fill in a form by asking a customer."""

import gymnasium as gym

from art_gym import Outcome, Task, TextEnv, ToolError, tool

ANSWERS = {
    "name": ("Anna", "Boris", "Chen", "Dora", "Emil", "Fatima", "Goran", "Hana"),
    "city": ("Lyon", "Oslo", "Porto", "Quito", "Riga", "Sofia", "Turin", "Vienna"),
    "meal": ("soup", "salad", "pasta", "curry", "rice", "fish"),
}


class Form(TextEnv):
    """Ask for each field, write what the customer says, and send the form."""

    instructions = (
        "Fill in the fields name, city and meal: ask the customer, write the answers, then send the form."
    )

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(max_turns=10, render_mode=render_mode)

    def begin(self, task: Task) -> str:
        self.customer = {field: str(self.np_random.choice(values)) for field, values in ANSWERS.items()}
        self.written: dict[str, str] = {}
        return "A customer is here."

    def known(self, field: str) -> str:
        if field not in ANSWERS:
            raise ToolError("the fields are name, city and meal")
        return field

    @tool
    def ask(self, field: str) -> str:
        """Ask the customer.

        Args:
            field: name, city or meal.
        """
        return f"{self.known(field)} is {self.customer[field]}"

    @tool
    def write(self, field: str, value: str) -> Outcome:
        """Write into a field.

        Args:
            field: name, city or meal.
            value: What the customer said.
        """
        first = self.known(field) not in self.written
        self.written[field] = value
        return Outcome("written", {"field": 0.2 * (first and value == self.customer[field])})

    @tool(ends=True)
    def send(self) -> Outcome:
        """Send the form."""
        right = self.written == self.customer
        return Outcome("thank you" if right else "the form is wrong", {"right": float(right)}, success=right)


gym.register("small/Form-v0", entry_point=Form)

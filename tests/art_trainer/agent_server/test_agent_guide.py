import re
from pathlib import Path
from typing import Any

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "your-own-agent.md"


def test_the_guides_own_agent_learns() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert block.count("\n") <= 60
    names: dict[str, Any] = {}
    exec(compile(block, str(GUIDE), "exec"), names)
    names["shared"].close()
    assert names["rewards"][0] < 0.25
    assert names["rewards"][-1] > 0.5

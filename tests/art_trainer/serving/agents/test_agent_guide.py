import re
from pathlib import Path
from typing import Any

import pytest

GUIDE = Path(__file__).parents[4] / "docs" / "guides" / "your-own-agent.md"


@pytest.mark.e2e
def test_the_guides_own_agent_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    (block,) = (one for one in blocks if "AgentBackend" in one)
    assert block.count("\n") <= 60
    names: dict[str, Any] = {}
    exec(compile(block, str(GUIDE), "exec"), names)
    names["shared"].close()
    assert names["before"] < 0.25
    assert names["after"] > 0.5
    assert {path.name for path in Path("runs/shout").iterdir()} >= {"metrics.jsonl", "checkpoints"}

"""What the mails of a generated company are about: every `Kind` of conversation."""

from __future__ import annotations

from art_gym.envs.mail.world_kinds_business import BUSINESS
from art_gym.envs.mail.world_kinds_work import WORK
from art_gym.envs.mail.world_model import Kind

KINDS: tuple[Kind, ...] = BUSINESS + WORK

"""The ``art-gym`` command, put together from its sub-commands."""

import typer

from art_gym.cli.certify import certify_command
from art_gym.cli.coding import coding_app, sandbox_app
from art_gym.cli.common import Version
from art_gym.cli.envs import check_command, info_command, list_command
from art_gym.cli.mail import mail_app
from art_gym.cli.mcp import serve_mcp_command
from art_gym.cli.new import new_command
from art_gym.cli.play import play_command

app = typer.Typer(
    help="Text environments for reinforcement learning.", no_args_is_help=True, add_completion=False
)


@app.callback()
def _begin(version: Version = False) -> None: ...


app.add_typer(mail_app, name="mail")
app.command("list")(list_command)
app.command("info")(info_command)
app.command("check")(check_command)
app.command("certify")(certify_command)
app.command("play")(play_command)
app.command("new")(new_command)
app.add_typer(coding_app, name="coding")
app.add_typer(sandbox_app, name="sandbox")
app.command("serve-mcp")(serve_mcp_command)

"""A gate's comment on a GitHub pull request: one for each gate, which later jobs update (action.yml)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx2 as httpx
import msgspec

from .errors import UlpscopeError
from .text import clean, slug

_MOST_CHARACTERS = 65_536  # of a comment
_A_PAGE = 100  # comments, the most that GitHub sends
_WRITERS = ("OWNER", "MEMBER", "COLLABORATOR")


class CommentError(UlpscopeError):
    """A comment that could not be written, in one sentence."""


class _Head(msgspec.Struct):
    sha: str


class _PullRequest(msgspec.Struct):
    number: int
    head: _Head


class _Event(msgspec.Struct):
    pull_request: _PullRequest | None = None


class _User(msgspec.Struct):
    type: str = ""


class _Comment(msgspec.Struct):
    id: int
    body: str | None = None
    user: _User | None = None
    author_association: str = ""

    def is_trusted(self) -> bool:
        """Return whether no stranger wrote it, who could change it after the job: an app did, or who may write here."""
        return self.author_association in _WRITERS or (self.user is not None and self.user.type == "Bot")


@dataclass(frozen=True)
class PullRequest:
    """The pull request of a job. api: of its repository; commit: that was pushed; job: the job's page."""

    api: str
    number: int
    commit: str
    job: str
    token: str = field(repr=False)


def pull_request_of(environment: Mapping[str, str]) -> PullRequest | None:
    """Return the pull request that a job of GitHub Actions is for, by the job's variables; None for another event."""
    try:
        event = msgspec.json.decode(Path(environment["GITHUB_EVENT_PATH"]).read_bytes(), type=_Event)
        repository, run = environment["GITHUB_REPOSITORY"], environment["GITHUB_RUN_ID"]
        server, api = environment["GITHUB_SERVER_URL"], environment["GITHUB_API_URL"]
        token = environment["GITHUB_TOKEN"]
    except KeyError as error:
        raise CommentError(f"{error.args[0]} is not set; a comment needs the variables of GitHub Actions.") from error
    except (OSError, msgspec.DecodeError) as error:
        raise CommentError(f"GITHUB_EVENT_PATH: cannot be read as an event ({clean(error, 200)}).") from error
    if event.pull_request is None:
        return None
    number, commit = event.pull_request.number, event.pull_request.head.sha
    return PullRequest(f"{api}/repos/{repository}", number, commit, f"{server}/{repository}/actions/runs/{run}", token)


def put_comment(pull: PullRequest, name: str, report: str, artifact: str = "") -> str:
    """Write a gate's report into its comment, or into a new one; return the comment's address.

    name: of the gate, of those of one pull request; artifact: address of its files.
    """
    marker = f"<!-- ulpscope gate: {slug(name)} -->\n"
    headers = {"Authorization": f"Bearer {pull.token}", "Accept": "application/vnd.github+json"}
    body = {"body": _body(pull, marker, report, artifact)}
    try:
        with httpx.Client(headers=headers, timeout=30) as client:
            comment = _find(client, f"{pull.api}/issues/{pull.number}/comments", marker)
            if comment is None:
                answer = client.post(f"{pull.api}/issues/{pull.number}/comments", json=body)
            else:
                answer = client.patch(f"{pull.api}/issues/comments/{comment}", json=body)
            return str(answer.raise_for_status().json()["html_url"])
    except httpx.HTTPStatusError as error:
        code = error.response.status_code
        hint = "; it needs `permissions: pull-requests: write`, which a fork's job never has" * (
            code in (401, 403, 404)
        )
        raise CommentError(f"GitHub refuses the token's comment ({code}){hint}.") from error
    except (httpx.HTTPError, msgspec.DecodeError, ValueError, KeyError, TypeError) as error:
        raise CommentError(f"no comment: {pull.api} does not answer as expected ({clean(error, 200)}).") from error


def _find(client: httpx.Client, address: str, marker: str) -> int | None:
    """Return the id of the comment that begins with a marker."""
    page = 1
    while True:
        answer = client.get(address, params={"per_page": _A_PAGE, "page": page}).raise_for_status()
        comments = msgspec.json.decode(answer.content, type=list[_Comment])
        for comment in comments:
            if (comment.body or "").replace("\r", "").startswith(marker) and comment.is_trusted():
                return comment.id
        if len(comments) < _A_PAGE:
            return None
        page += 1


def _body(pull: PullRequest, marker: str, report: str, artifact: str) -> str:
    links = [f"Commit {pull.commit}", f"[job]({pull.job})", f"[files, with a picture]({artifact})" if artifact else ""]
    footer = " · ".join(filter(None, links))
    room = _MOST_CHARACTERS - len(marker) - len(footer) - 100
    if len(report) > room:
        report = report[:room].rpartition("\n")[0] + "\n\nThe job's summary has the rest.\n"
    return f"{marker}{report}\n{footer}\n"

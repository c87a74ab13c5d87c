"""Questions between nodes: a node without a worker for a query or a validator has it answered by a worker of another node.

The history of the run is in the database, where the other node reads it. So only the question travels.

Questions are not carried by the database. If a living node cannot be called, a worker may be there of which this node
knows nothing. Then the caller soon gets a reply to retry at another server: our own client does, over a new connection,
until one has a worker.
"""

from __future__ import annotations

from typing import Protocol

from backstay.engine.core.engine import Engine
from backstay.engine.core.world import rest
from backstay.engine.node import Node
from backstay.kernel.event import HistoryDamaged
from backstay.kernel.message import Refused
from backstay.kernel.values import SECOND
from backstay.link.nodes import NodeLinks
from backstay.protocol.native.nodes import AskWorker, LinkFailed, Misdirected, Owner, WorkerSaid, understands
from backstay.server.http.errors import NotTheEngine, Stopping
from backstay.server.workers.remote_queries import PendingQuery, RemoteQueries, queue_of_run

NO_WORKER = "no_worker_here"
AGAIN = SECOND // 4  # after which nodes that had no worker are asked again
SOON = SECOND // 20  # after which callers are sent to another node, if one cannot be called


class AskingServer(Protocol):
    """The part of a server that forwards questions to workers of other nodes, and answers those of other nodes."""

    draining: bool
    links: NodeLinks
    questions: RemoteQueries
    engine: Engine
    node: Node


class AskedQuestions:
    def __init__(self, server: AskingServer) -> None:
        self._server = server

    async def ask(self, question: PendingQuery) -> None:
        """Ask all other nodes, again and again, while no worker here has the question."""
        server = self._server
        asked = AskWorker(inquiry=question.inquiry, upto=question.history[-1].sequence)
        while question.owner is None and not question.answer.done():
            for node in self._others():
                try:
                    said = await server.links.call(node, asked)
                except Refused as refusal:
                    if refusal.reason != NO_WORKER:
                        server.questions.refuse(question, refusal)
                        return
                except HistoryDamaged as damage:
                    server.questions.refuse(question, damage)
                    return
                except (LinkFailed, Misdirected):
                    continue
                else:
                    is_query = question.inquiry.kind == "query"
                    server.questions.answer(question, said.value if is_query else said.objection)
                    return
            if self._may_not_call_all():
                await rest(server.engine.world, SOON)
                if question.owner is None:
                    server.questions.refuse(question, _ask_elsewhere(question))
            else:
                await rest(server.engine.world, AGAIN)

    def _may_not_call_all(self) -> bool:
        """Whether another server lives that cannot be called: it may have a worker."""
        return len(self._others()) < sum(not node.facts.embedded for node in self._server.node.shards.others)

    def _others(self) -> list[Owner]:
        """The other nodes that can be called."""
        return [
            Owner(node.id, node.facts.address, 0)
            for node in self._server.node.shards.others
            if node.facts.address is not None and not node.facts.embedded and understands(node.facts.speaks)
        ]

    async def answer(self, asked: AskWorker) -> WorkerSaid:
        """Have a question of another node answered by a worker here. Refuses if there is none that would take it at once."""
        server = self._server
        if server.draining:
            raise Stopping
        inquiry = asked.inquiry
        history = await server.engine.store.history(inquiry.run_key, limit=asked.upto)
        if not history or not server.questions.has_worker(inquiry, queue_of_run(history)):
            raise Refused(NO_WORKER, "no worker that could answer is linked to this node")
        said = await server.questions.inquire(inquiry, history, False, only_here=True)
        return WorkerSaid(value=said) if inquiry.kind == "query" else WorkerSaid(objection=said)


def _ask_elsewhere(question: PendingQuery) -> NotTheEngine:
    return NotTheEngine(
        "engine_elsewhere",
        f"no worker at this server takes {question.inquiry.kind} {question.inquiry.name!r}, and this server cannot call every"
        " other server: retry, which may reach another server, or let all servers advertise their addresses",
    )

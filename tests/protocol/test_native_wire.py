"""The bytes of Backstay's own wire protocol, message by message.

Workers and servers of different builds of one protocol version talk to each other, so these bytes are a contract: a class
may be renamed, its tag, its fields and their order may not.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from backstay.kernel.failure import Failure
from backstay.kernel.features.activity import ActivityAssignment, Progress
from backstay.kernel.features.close import CompleteWorkflow
from backstay.kernel.features.start import RecordedDefinition
from backstay.kernel.limits import Breach, Limits
from backstay.kernel.retry import RetryPolicy
from backstay.kernel.task import START, Block, Task
from backstay.kernel.values import Routing
from backstay.protocol.commands import Inquiry
from backstay.protocol.native import client, worker
from backstay.protocol.native.client import Refusal
from backstay.protocol.native.events import WireEvent

EVENT = WireEvent(7, 3, "TimerFired", 12, msgspec.Raw(b'{"sequence":1}'), msgspec.Raw(b"null"), 99)
REFUSAL = Refusal("stale_lease", "it is another worker's", {"task_id": "t1"})
TASK = Task(
    id="01RUN-a3.1",
    workflow=5,
    run=7,
    kind="activity",
    type="charge",
    routing=Routing(),
    available_at=1,
    created_at=2,
    state="leased",
    attempt=1,
    owner="w",
    leased_at=3,
    until=4,
    call="poll",
    step=3,
    seen=6,
    history_limit=8,
)
ASSIGNMENT = ActivityAssignment(
    task=TASK,
    namespace="default",
    workflow_id="order-1",
    run_id="01RUN",
    step=3,
    activity_execution_id="01RUN-3",
    activity_attempt_id="01RUN-3-1",
    attempt_number=1,
    activity_type="charge",
    arguments=b"x",
    retry_policy=RetryPolicy(max_attempts=3),
)
INQUIRY = Inquiry(
    kind="query",
    namespace="default",
    workflow_id="order-1",
    run_id="01RUN",
    run_key=7,
    run_number=1,
    workflow_type="order",
    cursor=3,
    name="total",
    arguments=None,
    at=12,
)

PINNED: list[tuple[Any, bytes]] = [
    (worker.Slots(1, 2, 3), b"[1,2,3]"),
    (worker.WorkerNode(7, "http://n:1", 2), b'[7,"http://n:1",2]'),
    (worker.HeldTask("01RUN-w1", 2), b'["01RUN-w1",2,0]'),
    (
        worker.OpenLink(worker_id="w", queues=["default"], workflows={"order": RecordedDefinition(fingerprint="f")}),
        b'{"worker_id":"w","queues":["default"],"workflows":{"order":{"fingerprint":"f"}}}',
    ),
    (
        worker.OpenLink(
            worker_id="w",
            queues=["a", "b"],
            build_id="1",
            sdk_version="0.1",
            validators={"order": ["amend"]},
            activities=["charge"],
            async_activities=["charge"],
            workflow_slots=1,
            activity_slots=2,
            async_slots=3,
            quiet=["TimerScheduled"],
            holding=[worker.HeldTask("01RUN-w1", 2)],
        ),
        b'{"worker_id":"w","queues":["a","b"],"build_id":"1","sdk_version":"0.1","validators":{"order":["amend"]},"activities":["charge"],"async_activities":["charge"],"workflow_slots":1,"activity_slots":2,"async_slots":3,"quiet":["TimerScheduled"],"holding":[["01RUN-w1",2,0]]}',
    ),
    (
        worker.Opened(
            station="s", lost=["01RUN-w1"], commands=["complete_workflow"], limits=Limits(), max_body_bytes=9
        ),
        b'{"station":"s","lost":["01RUN-w1"],"commands":["complete_workflow"],"limits":{"payload_size":2097152,"memo_size":262144,"search_attribute_size":40960,"pending_activity_count":2000,"pending_timer_count":2000,"pending_child_count":1000,"pending_signal_count":5000,"pending_update_count":500,"command_batch_size":1000,"history_length":50000},"max_body_bytes":9,"node":null,"nodes":[]}',
    ),
    (worker.Closing(worker_id="w", station="s"), b'{"worker_id":"w","station":"s"}'),
    (
        worker.Resumed(4, 11, [CompleteWorkflow(result=b"x")], ["f"], 3),
        b'[4,11,[{"type":"complete_workflow","result":"eA=="}],["f"],3]',
    ),
    (
        worker.TaskDone(5, "01RUN-w1", 1, [CompleteWorkflow(result=None)]),
        b'["task",5,"01RUN-w1",1,[{"type":"complete_workflow"}],[],null,null]',
    ),
    (
        worker.TaskDone(5, "01RUN-w1", 1, [], ["f"], 3, Breach("payload", 2, 1)),
        b'["task",5,"01RUN-w1",1,[],["f"],3,{"kind":"payload","value":2,"configured":1}]',
    ),
    (
        worker.TaskFailed(5, "01RUN-w1", 1, Block(message="m", type="T")),
        b'["task_failed",5,"01RUN-w1",1,{"message":"m","type":"T"}]',
    ),
    (worker.AttemptDone(5, "01RUN", 3, 1, b"x"), b'["activity",5,"01RUN",3,1,"eA==",null,null]'),
    (
        worker.AttemptDone(5, "01RUN", 3, 1, None, worker.Resumed(4, 11, [])),
        b'["activity",5,"01RUN",3,1,null,[4,11,[],[],null],null]',
    ),
    (
        worker.AttemptFailed(5, "01RUN", 3, 1, Failure(message="m"), True),
        b'["activity_failed",5,"01RUN",3,1,{"message":"m"},true]',
    ),
    (worker.Heartbeat(5, "01RUN", 3, 1, None), b'["beat",5,"01RUN",3,1,null]'),
    (worker.Heartbeat(5, "01RUN", 3, 1, Progress(message="half")), b'["beat",5,"01RUN",3,1,{"message":"half"}]'),
    (worker.GivenBack("01RUN-w1", 2), b'["given_back","01RUN-w1",2]'),
    (worker.QueryAnswer("q", 1, b"x"), b'["told","q",1,"eA==",null,null]'),
    (
        worker.QueryAnswer("q", 1, refused=REFUSAL),
        b'["told","q",1,null,null,{"reason":"stale_lease","message":"it is another worker\'s","fields":{"task_id":"t1"}}]',
    ),
    (worker.Exchange(worker_id="w", station="s", wait=25.0), b'{"worker_id":"w","station":"s","wait":25.0}'),
    (
        worker.Exchange(
            worker_id="w",
            station="s",
            reports=[worker.GivenBack("01RUN-w1", 2)],
            again=True,
            draining=True,
            holding=[worker.HeldTask("01RUN-w1", 2)],
        ),
        b'{"worker_id":"w","station":"s","reports":[["given_back","01RUN-w1",2]],"again":true,"draining":true,"holding":[["01RUN-w1",2,0]]}',
    ),
    (worker.StickyState(9, 11, 2, [EVENT]), b'[9,11,2,[[7,3,"TimerFired",12,{"sequence":1},null,99]]]'),
    (worker.Answered(), b"[null,null,null,true,false]"),
    (
        worker.Answered(REFUSAL, worker.StickyState(9, 11, 0, []), "moved_on", False, True),
        b'[{"reason":"stale_lease","message":"it is another worker\'s","fields":{"task_id":"t1"}},[9,11,0,[]],"moved_on",false,true]',
    ),
    (
        worker.TaskLease(
            "01RUN-w1",
            1,
            5,
            7,
            "order-1",
            "01RUN",
            1,
            "running",
            "order",
            9,
            4,
            None,
            START,
            3,
            11,
            2,
            5,
            False,
            [EVENT],
        ),
        b'["task","01RUN-w1",1,5,7,"order-1","01RUN",1,"running","order",9,4,null,{},3,11,2,5,false,[[7,3,"TimerFired",12,{"sequence":1},null,99]]]',
    ),
    (
        worker.ActivityLease(ASSIGNMENT),
        b'["activity",{"task":{"id":"01RUN-a3.1","workflow":5,"run":7,"kind":"activity","type":"charge","routing":{},"available_at":1,"created_at":2,"state":"leased","attempt":1,"owner":"w","leased_at":3,"until":4,"call":"poll","seen":6,"upto":8,"step":3},"namespace":"default","workflow_id":"order-1","run_id":"01RUN","step":3,"activity_execution_id":"01RUN-3","activity_attempt_id":"01RUN-3-1","attempt_number":1,"activity_type":"charge","arguments":"eA==","retry_policy":{"max_attempts":3},"close_deadline_at":null,"schedule_to_close_deadline_at":null}]',
    ),
    (
        worker.QueryTask("q", 1, INQUIRY, [EVENT], True),
        b'["question","q",1,{"kind":"query","namespace":"default","workflow_id":"order-1","run_id":"01RUN","run_key":7,"run_number":1,"workflow_type":"order","cursor":3,"name":"total","arguments":null,"at":12},[[7,3,"TimerFired",12,{"sequence":1},null,99]],true]',
    ),
    (
        worker.Exchanged(answers=[worker.Answered()], closed=["01RUN"], withdrawn=["01RUN-a3.1"], leaving=True),
        b'{"answers":[[null,null,null,true,false]],"closed":["01RUN"],"withdrawn":["01RUN-a3.1"],"leaving":true}',
    ),
    (
        worker.HistoryWanted(worker_id="w", task_id="01RUN-w1", attempt=1, after=3),
        b'{"worker_id":"w","task_id":"01RUN-w1","attempt":1,"after":3}',
    ),
    (
        worker.HistoryPart(events=[EVENT], more=True),
        b'{"events":[[7,3,"TimerFired",12,{"sequence":1},null,99]],"more":true}',
    ),
    (client.Calls([client.BatchedCall("start-workflow", msgspec.Raw(b"{}"))]), b'{"calls":[["start-workflow",{}]]}'),
    (client.BatchedCall("start-workflow", msgspec.Raw(b"{}")), b'["start-workflow",{}]'),
    (client.BatchedReply(0, msgspec.Raw(b"{}")), b"[0,{},200]"),
    (client.BatchedReply(1, msgspec.Raw(b"{}"), 409), b"[1,{},409]"),
    (REFUSAL, b'{"reason":"stale_lease","message":"it is another worker\'s","fields":{"task_id":"t1"}}'),
]


@pytest.mark.parametrize(
    ("message", "bytes_"), PINNED, ids=[f"{type(m).__name__}-{n}" for n, (m, _) in enumerate(PINNED)]
)
def test_a_message_has_the_bytes_of_protocol_version_1(message: Any, bytes_: bytes) -> None:
    assert worker.encode(message) == bytes_
    assert msgspec.json.decode(bytes_, type=type(message)) == message


def test_every_message_of_the_protocol_is_pinned() -> None:
    def messages(module: Any) -> set[type]:
        return {
            kind
            for name, kind in vars(module).items()
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind.__module__ == module.__name__
            if not name.startswith("_")
        }

    assert messages(worker) | messages(client) == {type(message) for message, _ in PINNED}


def test_the_protocol_version_is_1() -> None:
    assert client.VERSION == 1

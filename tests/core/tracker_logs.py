"""`log` of the package offline, run by a Python that has the trackers: `tracker_logs.py TRACKER
FOLDER`.

Logs a run to a new run of the tracker, then steps and a check to an active one. Prints as JSON what
the tracker stored: the number of its runs, (name, step, value) of each figure and text, and HTML
files.
"""

import json
import os
import struct
import sys
from pathlib import Path

from core import log
from core.rl import Check

SAMPLES = Path(__file__).resolve().parents[2] / "sample_runs"


def log_all(new, start, active=""):
    log(SAMPLES / "fresh-against-cached.duckdb", to=new)
    run = start()
    log(SAMPLES / "trainer-against-rollout.duckdb", to=run, step=3)
    log(Check({"k3": 0.25}, "a warning"), to=active or run, step=4)
    return run


def wandb():
    import wandb

    log_all("wandb", wandb.init, "wandb")
    wandb.teardown()
    folders = list(Path().glob("wandb/offline-*"))
    rows = []
    for path in Path().glob("wandb/offline-*/*.wandb"):
        for items in histories(path.read_bytes()):
            rows += [(name, items["_step"], value) for name, value in items.items()]
    # of charts
    for path in Path().glob("wandb/offline-*/files/media/table/mismatch/by_step/*.json"):
        name = f"mismatch/by_step/{path.name.partition('_table')[0]}"
        rows += [(name, step, value) for step, _, value in json.loads(path.read_text())["data"]]
    pages = Path().glob("wandb/offline-*/files/media/html/**/*.html")
    return len(folders), rows, [path.read_text() for path in pages]


def histories(data):
    """Histories in a .wandb file: after 7 bytes LevelDB's log of blocks of 32 KiB, each record a
    protobuf message.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    place = 7
    message = b""
    while place + 7 <= len(data):
        rest = 32768 - place % 32768
        # a header of 7 bytes never spans two blocks
        if rest < 7:
            place += rest
            continue
        _, size, kind = struct.unpack_from("<IHB", data, place)
        message += data[place + 7 : place + 7 + size]
        place += 7 + size
        # a whole message, or its last part
        if kind in (1, 4):
            items = Record.FromString(message).history.item
            message = b""
            yield {
                item.key or "|".join(item.nested_key): json.loads(item.value_json) for item in items
            }


def trackio():
    import trackio
    from trackio.sqlite_storage import SQLiteStorage

    log_all("trackio", lambda: trackio.init("ulpscope"), "trackio")
    trackio.finish()
    runs = list(trackio.Api().runs("ulpscope"))
    logs = []
    for run in runs:
        logs += SQLiteStorage.get_logs("ulpscope", run.name, run_id=run.id)
    rows = [(name, entry["step"], value) for entry in logs for name, value in entry.items()]
    media = [value["file_path"] for *_, value in rows if isinstance(value, dict)]
    return len(runs), rows, [Path("trackio", "media", path).read_text() for path in media]


def mlflow():
    import mlflow

    log_all("mlflow", mlflow.start_run, "mlflow")
    mlflow.end_run()
    client = mlflow.MlflowClient()
    runs = client.search_runs(["0"])
    rows = []
    html = []
    for run in runs:
        run_id = run.info.run_id
        rows += [(name, None, text) for name, text in run.data.tags.items()]
        for name in run.data.metrics:
            rows += [(name, p.step, p.value) for p in client.get_metric_history(run_id, name)]
        for file in client.list_artifacts(run_id, "ulpscope"):
            html.append(mlflow.artifacts.load_text(f"{run.info.artifact_uri}/{file.path}"))
    return len(runs), rows, html


def tensorboard():
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    log_all("tensorboard:runs/new", lambda: SummaryWriter("runs/active")).close()
    rows = []
    folders = list(Path("runs").iterdir())
    for folder in folders:
        events = EventAccumulator(str(folder)).Reload()
        for name in events.Tags()["scalars"]:
            rows += [(name, p.step, p.value) for p in events.Scalars(name)]
        for name in events.Tags()["tensors"]:
            (text, *_) = events.Tensors(name)
            content = text.tensor_proto.string_val[0].decode()
            rows.append((name.removesuffix("/text_summary"), text.step, content))
    return len(folders), rows, [file.read_text() for file in Path("runs").glob("*/*.html")]


if __name__ == "__main__":
    os.chdir(sys.argv[2])
    os.environ |= {
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "MLFLOW_TRACKING_URI": "sqlite:///mlflow.db",
    }
    os.environ["TRACKIO_DIR"] = str(Path("trackio").resolve())
    print(json.dumps(globals()[sys.argv[1]](), default=str))

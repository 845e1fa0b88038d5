from __future__ import annotations

from importlib import resources
from pathlib import Path

from grpc_tools import protoc

import everstep.lab.deviceplugin as package

SOURCE = "everstep/lab/deviceplugin/api.proto"


def test_the_generated_messages_are_those_of_the_proto_beside_them(tmp_path: Path) -> None:
    folder = Path(str(resources.files(package)))
    root = folder.parents[2]
    assert (
        protoc.main(["protoc", f"-I{root}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", f"{root}/{SOURCE}"])
        == 0
    )
    for name in ("api_pb2.py", "api_pb2.pyi"):
        assert (tmp_path / SOURCE).with_name(name).read_text() == (folder / name).read_text(), name

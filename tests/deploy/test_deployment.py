"""What `deploy/` says agrees with the code: settings, commands, what is copied into the image."""

import re
import shutil
import subprocess
import tomllib

import pytest
from msgspec.structs import fields

from app.hosting import sign_in
from core.commands import serve
from core.configuration import SECTIONS, configuration
from core.errors import ConfigurationError
from core.hosting import start
from tests.places import ROOT

DEPLOY = ROOT / "deploy"
HOSTING = ROOT / "docs" / "guides" / "hosting.md"


def test_the_example_is_a_configuration_and_names_every_setting(tmp_path):
    text = (DEPLOY / "ulpscope.example.toml").read_text()
    place = tmp_path / "ulpscope.toml"
    place.write_text(text)
    found = configuration({"ULPSCOPE_CONFIG": str(place)})
    assert found.hosting.public_url.startswith("https://")
    uncommented = re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)
    place.write_text(uncommented)
    configuration({"ULPSCOPE_CONFIG": str(place)})
    tables = tomllib.loads(uncommented)
    named = {section: set(settings) for section, settings in tables.items()}
    assert named == {
        section: {each.name for each in fields(kind)} for section, kind in SECTIONS.items()
    }


def test_what_the_image_copies_is_there_and_nothing_that_the_server_imports_is_left_out():
    text = (DEPLOY / "Dockerfile").read_text()
    copied = [
        part
        for line in re.findall(r"^COPY (?!--)(.+)$", text, re.MULTILINE)
        for part in line.split()[:-1]
    ]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    assert {"app", "core", "pages", "sample_runs", ".streamlit"} <= set(copied)
    kept = re.findall(r"^!(\S+)$", (DEPLOY / "Dockerfile.dockerignore").read_text(), re.MULTILINE)
    assert set(copied) == set(kept)


def test_unit_and_compose_start_what_there_is_on_the_ports_that_nginx_knows():
    nginx = (DEPLOY / "nginx.conf").read_text()
    ports = set(re.findall(r"server 127\.0\.0\.1:(\d+);", nginx))
    compose = (DEPLOY / "compose.yaml").read_text()
    assert set(re.findall(r'"--port", "(\d+)"', compose)) == ports
    unit = (DEPLOY / "ulpscope@.service").read_text()
    assert "-m core serve --address 127.0.0.1 --port %i" in unit
    assert {"address", "port"} <= set(serve.serve.__annotations__)
    assert all(f"ulpscope@{port}" in HOSTING.read_text() for port in ports)


def test_the_example_starts_with_a_password_and_nginx_takes_its_headers_from_the_client(
    tmp_path,
):
    text = (DEPLOY / "ulpscope.example.toml").read_text()
    site = (DEPLOY / "nginx.conf").read_text()
    place = tmp_path / "ulpscope.toml"
    place.write_text(text)
    with pytest.raises(ConfigurationError, match="no sign-in"):
        start.check(configuration({"ULPSCOPE_CONFIG": str(place)}))
    start.check(
        configuration(
            {"ULPSCOPE_CONFIG": str(place), "ULPSCOPE_SIGN_IN_PASSWORD": "correct horse"},
        ),
        "0.0.0.0",
    )
    emptied = re.findall(r'^ *proxy_set_header +(\S+) +"";$', site, re.MULTILINE)
    assert {re.search(r'header = "(\S+)"', text)[1], "X-ULPscope-Proxy-Secret"} <= set(emptied)
    # nginx drops the server's lines in a location that has one of its own
    assert "proxy_set_header" not in site[site.index("location") :]


def test_nginx_limits_the_sign_in_of_each_address():
    site = (DEPLOY / "nginx.conf").read_text()
    zone = re.search(
        r"^limit_req_zone \$binary_remote_addr zone=(\w+):1m rate=1r/s;$",
        site,
        re.MULTILINE,
    )
    assert zone
    location = re.search(r"location (\S+) +\{[^}]*limit_req zone=" + zone[1], site)
    assert location
    assert all(path.startswith(location[1]) for path in sign_in.PATHS)


def _complaints(unit):
    said = subprocess.run(
        ["systemd-analyze", "verify", str(unit)],
        capture_output=True,
        text=True,
    ).stderr.splitlines()
    return [line for line in said if "ulpscope" in line and "is not executable" not in line]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
def test_systemd_understands_the_unit_and_would_not_one_with_a_planted_fault(tmp_path):
    unit = DEPLOY / "ulpscope@.service"
    assert _complaints(unit) == []
    broken = tmp_path / unit.name
    broken.write_text(unit.read_text().replace("MemoryMax=90%", "MemoryMax=much"))
    assert len(_complaints(broken)) == 1

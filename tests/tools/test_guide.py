"""The snippets of the guide on other tools run as printed, where these tools are installed."""

import pytest

from tests.docs.test_guides import TOOLS
from tests.snippets import run_page

pytestmark = pytest.mark.tools


def test_the_snippets_on_other_tools_run_as_printed(tmp_path):
    printed = run_page(TOOLS, tmp_path)
    assert "loss" in printed
    assert " | " in printed

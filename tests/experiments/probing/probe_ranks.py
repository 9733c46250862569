"""What each process of a launched probe runs."""

import sys

from accelerate import Accelerator

from hf_memory.experiments.probing.cells import probe_model
from hf_memory.experiments.probing.subject import load_subject
from tests.distributed.launching import leave
from tests.experiments.probing.test_cells import PLAN

if __name__ == "__main__":
    accelerator = Accelerator(cpu=True)
    subject = load_subject(sys.argv[1], "model", device=accelerator.device)
    rows = probe_model(subject, PLAN, sys.argv[2], accelerator=accelerator, progress=False)
    main = accelerator.is_main_process
    leave({"processes": accelerator.num_processes, "rows": len(rows)} if main else None)

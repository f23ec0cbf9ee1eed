"""Exit statuses of the command line.

0    done
1    it failed: a model, a download, a disk, or some lines of a prompts file
2    the request is wrong: an option, a value, a prompt
70   a bug in forerun; FORERUN_DEBUG=1 shows the traceback
130  interrupted with Ctrl-C
141  the reader of our output went away (`forerun ... | head -1`), as for any program that SIGPIPE ends
"""

from __future__ import annotations

FAILED = 1
WRONG = 2
BUG = 70
INTERRUPTED = 130
PIPE_CLOSED = 141

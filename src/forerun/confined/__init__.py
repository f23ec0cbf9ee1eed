"""Runs in a child process, with bounds, what model files bring along and nobody has read.

A chat template is a program, and a tokenizer's regular expression can take longer than anybody lives. Neither Jinja nor
a regular expression engine can be interrupted from inside, and no list of operations that may grow a text is complete.
So they run in a process of their own, which holds nothing else, and which ends when a request takes too much:

    time      of the processor, by the child's own timer: a busy machine does not shorten it. Besides, the parent ends the
              child after ten times as long by the clock, which alone holds where there is no such timer (Windows).
    memory    by the limit on the address space (Linux). macOS and Windows keep no such limit: there it is only the time
              that bounds what can be filled.
    answers   by their length, before they are sent.

The next request starts a new child. Requests and answers are JSON, so that nothing that comes back can run code here. The
child is a new interpreter, not a fork: a fork of a process that has threads can hang.
"""

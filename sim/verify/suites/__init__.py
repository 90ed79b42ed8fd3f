"""The suites of ``edgedec simulate --bench NAME``. Each is a file with a function ``run``; its name is NAME."""

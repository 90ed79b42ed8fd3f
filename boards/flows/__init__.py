"""Build flows: a file that is called as a family of devices has the functions of edgedec.boards.flow.Flow."""

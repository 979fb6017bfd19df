"""Pure instructions: what each opcode computes, one family a file."""

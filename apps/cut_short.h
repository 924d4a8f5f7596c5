// A file that lies mapped in memory, as checkpoints do, and that another program cuts short: who
// reads what is gone gets SIGBUS. Told like every other error, in place of a death without a word.
#pragma once

namespace stretto {

// From now on SIGBUS names the file on standard error and ends the process with exit code 2.
void tell_files_cut_short();

}  // namespace stretto

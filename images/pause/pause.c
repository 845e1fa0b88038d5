/* The first process of every pod: holds the pod's namespaces open, reaps orphans, ends at once when asked to. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void stop(int signal_number) {
  (void)signal_number;
  _exit(0);
}

static void reap(int signal_number) {
  (void)signal_number;
  while (waitpid(-1, 0, WNOHANG) > 0) {
  }
}

int main(void) {
  struct sigaction on_stop = {.sa_handler = stop};
  struct sigaction on_child = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
  if (sigaction(SIGINT, &on_stop, 0) < 0 || sigaction(SIGTERM, &on_stop, 0) < 0 || sigaction(SIGCHLD, &on_child, 0) < 0) {
    return 1;
  }
  for (;;) {
    pause();
  }
}

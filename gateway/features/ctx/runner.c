/* The program that an object's shebang names: `gateway/features/ctx/client.py`, which describes the frames, in C.

   `ctxgate ctx sync` compiles it where there is a compiler. It starts in a tenth of Python's time. */

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define OK 0
#define GENERIC 1
#define USAGE 2
#define DENIED 13
#define UNAVAILABLE 69
#define READ 65536
#define LONGEST 1048576 /* of a payload that has to come whole: a path, a program, a code */

static int gateway = -1, as_text;
static const char *name, *run_id;
static volatile sig_atomic_t interrupts;

static int put(int descriptor, const char *data, size_t size) {
  while (size > 0) {
    ssize_t done = write(descriptor, data, size);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return -1;
    data += done;
    size -= done;
  }
  return 0;
}

/* Tells of a failure of this side, in the form of the answer, and ends the process. */
static void fail(const char *code, const char *message, int exit_code) {
  if (as_text) {
    fprintf(stderr, "%s: %s\n", name, message);
    exit(exit_code);
  }
  const char *texts[] = {run_id, code, message}, *keys[] = {"{\"type\":\"error\",\"run\":", ",\"code\":", ",\"message\":"};
  for (int at = 0; at < 3; at++) {
    fputs(keys[at], stdout);
    putchar('"');
    for (const unsigned char *c = (const unsigned char *)texts[at]; *c; c++) {
      if (*c == '"' || *c == '\\') printf("\\%c", *c);
      else if (*c < ' ' || *c == 127) printf("\\u%04x", *c);
      else putchar(*c);
    }
    putchar('"');
  }
  fputs("}\n{\"type\":\"done\",\"run\":\"", stdout);
  for (const unsigned char *c = (const unsigned char *)run_id; *c; c++)
    if (*c == '"' || *c == '\\') printf("\\%c", *c);
    else if (*c < ' ' || *c == 127) printf("\\u%04x", *c);
    else putchar(*c);
  puts("\",\"status\":\"error\"}");
  exit(fflush(stdout) == 0 ? exit_code : GENERIC);
}

/* The answer can't be written: a full disk, for example. Quiet when the reader has gone, as behind `| head`. */
static void unwritten(void) {
  if (errno != EPIPE) fprintf(stderr, "%s: the answer can't be written: %s\n", name, strerror(errno));
  exit(GENERIC);
}

static void interrupted(int number) {
  (void)number;
  if (++interrupts > 1) _exit(GENERIC);
  int before = errno;
  if (send(gateway, "c0\n", 3, MSG_NOSIGNAL) < 0) errno = before;
  errno = before;
}

static void on_interrupt(void (*handler)(int)) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, NULL);
}

static int frame(char kind, const char *data, size_t size) {
  char head[32];
  int length = snprintf(head, sizeof head, "%c%zu\n", kind, size);
  return put(gateway, head, length) || put(gateway, data, size) ? -1 : 0;
}

/* Sends a file. Nothing runs meanwhile, so an interrupt ends the process. */
static void upload(const char *path) {
  static char data[READ];
  on_interrupt(SIG_DFL);
  int descriptor = strcmp(path, "-") == 0 ? 0 : open(path, O_RDONLY);
  ssize_t size = descriptor < 0 ? -1 : 1;
  while (size > 0) {
    size = read(descriptor, data, sizeof data);
    if (size < 0 && errno == EINTR) size = 1;
    else if (size > 0 && frame('d', data, size) < 0) break; /* what it said can still be read */
  }
  if (size < 0) {
    const char *reason = strerror(errno);
    frame('f', reason, strlen(reason));
  } else if (size == 0)
    frame('d', "", 0);
  if (descriptor > 0) close(descriptor);
  on_interrupt(interrupted);
}

static void become(char *payload, size_t size) {
  char *program[64];
  int count = 0;
  for (char *at = payload; at < payload + size && count < 63; at += strlen(at) + 1) program[count++] = at;
  program[count] = NULL;
  on_interrupt(SIG_DFL);
  signal(SIGPIPE, SIG_DFL);
  execv(program[0], program);
  fprintf(stderr, "%s: can't start %s: %s\n", name, program[0], strerror(errno));
  exit(GENERIC);
}

/* Whether a word says in which form a failure is told; then it is. */
static int form_option(const char *word) {
  int text = strcmp(word, "-t") == 0 || strcmp(word, "--text") == 0;
  if (!text && strcmp(word, "--jsonl") != 0) return 0;
  as_text = text;
  return 1;
}

/* Follows the gateway's frames; returns the exit code. */
static int follow(void) {
  static char data[READ];
  char head[32], kind = 0, *payload = NULL;
  size_t headed = 0, left = 0, filled = 0;
  on_interrupt(interrupted);
  for (;;) {
    ssize_t got = recv(gateway, data, sizeof data, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    for (char *at = data, *end = data + got; at < end || (kind && left == 0);) {
      if (kind == 0) {
        if (*at != '\n') {
          if (headed + 1 < sizeof head) head[headed++] = *at;
          at++;
          continue;
        }
        at++;
        head[headed] = 0;
        headed = 0;
        kind = head[0];
        left = strtoul(head + 1, NULL, 10);
        filled = 0;
        if (kind != 'o' && kind != 'e') {
          if (left > LONGEST || (payload = malloc(left + 1)) == NULL) exit(GENERIC);
        }
        continue;
      }
      size_t some = (size_t)(end - at) < left ? (size_t)(end - at) : left;
      if (kind == 'o' || kind == 'e') {
        if (put(kind == 'o' ? 1 : 2, at, some) < 0) unwritten();
      } else {
        memcpy(payload + filled, at, some);
        filled += some;
      }
      at += some;
      left -= some;
      if (left > 0) continue;
      char done = kind;
      kind = 0;
      if (done == 'o' || done == 'e') continue;
      payload[filled] = 0;
      if (done == 'x') return atoi(payload);
      if (done == 'r') become(payload, filled);
      if (done == 'i') upload(payload);
      free(payload);
    }
  }
  fail("EHOSTDOWN", "the gateway went away before the answer was done", UNAVAILABLE);
  return UNAVAILABLE;
}

/* What a standard stream is, as `gateway.features.ctx.command.StandardStream` has it. */
static char stream(int descriptor) {
  struct stat status;
  if (fstat(descriptor, &status) < 0) {
    /* Otherwise the connection would get this number. */
    if (open("/dev/null", O_RDWR) < 0) exit(GENERIC);
    return 'x';
  }
  if (S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode)) return 'p';
  if (S_ISREG(status.st_mode)) return status.st_size ? 'f' : 'o';
  return isatty(descriptor) ? 't' : 'o';
}

static void call(int count, const char **fields) {
  size_t size = 0;
  for (int at = 0; at < count; at++) size += strlen(fields[at]) + 1;
  char *whole = malloc(size + 32), *to;
  if (whole == NULL) exit(GENERIC);
  to = whole + sprintf(whole, "h%zu\n", size - 1);
  for (int at = 0; at < count; at++) to = stpcpy(to, fields[at]) + 1;
  put(gateway, whole, to - 1 - whole); /* a gateway that has gone shows when it is read */
  free(whole);
}

int main(int argc, char **argv) {
  static char root[PATH_MAX], found[PATH_MAX], folder[PATH_MAX], message[2 * PATH_MAX + 64];
  if (argc < 2) {
    fprintf(stderr, "usage: %s OBJECT [INPUT ...]\n", argv[0]);
    return USAGE;
  }
  signal(SIGPIPE, SIG_IGN);
  const char *slash = strrchr(argv[1], '/'), *form = getenv("CTX_FORMAT");
  name = slash ? slash + 1 : argv[1];
  run_id = getenv("CTX_RUN_ID");
  if (run_id == NULL || !*run_id) run_id = "r1";
  if (form == NULL) form = "";
  char streams[4] = {stream(0), stream(1), stream(2), 0};
  if (streams[1] == 'x') {
    fprintf(stderr, "%s: standard output is closed\n", name);
    return GENERIC;
  }
  as_text = strcmp(form, "text") == 0 || (streams[1] == 't' && strcmp(form, "jsonl") != 0);
  int raw = 0;
  for (int at = 2; at < argc; at++) raw |= strcmp(argv[at], "--") == 0;
  for (int at = 2; at < argc && form_option(argv[at]); at++) continue;
  if (!raw) form_option(argv[argc - 1]);
  /* ROOT/bin/cortexfs-object-runner */
  if (realpath(argv[0], root) == NULL) fail("ENOENT", "the runner can't find its tree", GENERIC);
  for (int level = 0; level < 2; level++) {
    char *last = strrchr(root, '/');
    if (last != NULL) *last = 0;
  }
  size_t length = strlen(root);
  struct stat status;
  if (realpath(argv[1], found) == NULL || strncmp(found, root, length) != 0 || found[length] != '/' ||
      stat(found, &status) < 0 || !S_ISREG(status.st_mode)) {
    snprintf(message, sizeof message, "%s is not an object of %s", argv[1], root);
    fail("ENOENT", message, GENERIC);
  }
  if (getcwd(folder, sizeof folder) == NULL) folder[0] = 0;

  struct sockaddr_un address = {.sun_family = AF_UNIX};
  gateway = socket(AF_UNIX, SOCK_STREAM, 0);
  snprintf(address.sun_path, sizeof address.sun_path, "%s/.ctxgate/exec.sock", root);
  if (gateway < 0 || connect(gateway, (struct sockaddr *)&address, sizeof address) < 0) {
    int reason = errno;
    if (argc > 2 && (strcmp(argv[2], "-h") == 0 || strcmp(argv[2], "--help") == 0)) {
      printf("usage: %s [OPTION ...] [INPUT ...]\n\nNo gateway is running that could describe %s: start it with ctxgate "
             "serve.\n", name, name);
      return OK;
    }
    if (reason == EACCES) {
      snprintf(message, sizeof message, "permission denied: %s", address.sun_path);
      fail("EACCES", message, DENIED);
    }
    fail("EHOSTDOWN",
         "the gateway isn't running, or serves another tree: start it with ctx.enabled: true (ctxgate serve)",
         UNAVAILABLE);
  }
  const char **fields = malloc((argc + 6) * sizeof *fields);
  if (fields == NULL) return GENERIC;
  const char *first[] = {"1", found + length + 1, name, run_id, folder, streams, form};
  memcpy(fields, first, sizeof first);
  for (int at = 2; at < argc; at++) fields[5 + at] = argv[at];
  call(argc + 5, fields);
  return follow();
}

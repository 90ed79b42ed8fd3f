// A plugin of qemu that counts the instructions of a program, and prints the count where the program asks for the group of a
// process that does not exist: getpgid(0x7ED6EC00 + mark). Debian has no package with the plugins' header.
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define MARKS 0x7ED6EC
#define GETPGID 155
#define PUBLIC __attribute__((visibility("default")))

struct qemu_plugin_tb;
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb*);
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t, void (*)(uint64_t, struct qemu_plugin_tb*));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb*, int, void*, uint64_t);
typedef void Called(uint64_t, unsigned, int64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);
void qemu_plugin_register_vcpu_syscall_cb(uint64_t, Called*);

PUBLIC int qemu_plugin_version = 1;
static uint64_t executed;

static void translated(uint64_t id, struct qemu_plugin_tb* block) {
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_inline(block, 0, &executed, qemu_plugin_tb_n_insns(block));
}

static void called(uint64_t id, unsigned processor, int64_t number, uint64_t first, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
                   uint64_t f, uint64_t g, uint64_t h) {
    (void)id, (void)processor, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
    if (number == GETPGID && first >> 8 == MARKS) fprintf(stderr, "mark %u %llu\n", (unsigned)(first & 255), (unsigned long long)executed);
}

PUBLIC int qemu_plugin_install(uint64_t id, const void* info, int count, char** arguments) {
    (void)info, (void)count, (void)arguments;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_vcpu_syscall_cb(id, called);
    return 0;
}

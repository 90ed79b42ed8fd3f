// Runs jobs on the shared thread pool from as many threads as argv[1] says, and checks that each job was led once, that no index of
// it was given twice, and that no call of it goes on after its end.
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "sessions/thread_pool.hpp"

namespace {

struct Job {
    std::atomic<int> calls[4]{};
    std::atomic<int> inside{0};
};

void work(void* user, size_t index) {
    Job& job = *static_cast<Job*>(user);
    job.inside.fetch_add(1);
    job.calls[index].fetch_add(1);
    for (volatile int wait = index ? 300 : 900; wait;) wait = wait - 1;
    job.inside.fetch_sub(1);
}

std::atomic<int> wrong{0};

void repeat(int jobs) {
    for (int number = 0; number < jobs; ++number) {
        Job job;
        const size_t count = 1 + static_cast<size_t>(number % 4);
        edgedec::ThreadPool::shared().run(work, count, &job);
        if (job.inside.load() || job.calls[0].load() != 1) wrong.fetch_add(1);
        for (size_t index = 1; index < 4; ++index) {
            const int most = index < count ? 1 : 0;
            if (job.calls[index].load() > most) wrong.fetch_add(1);
        }
        if (number % 100 == 99) std::this_thread::sleep_for(std::chrono::milliseconds(3));  // the threads go to sleep
    }
}

}  // namespace

int main(int, char** argv) {
    std::vector<std::thread> callers;
    for (int number = 1; number < std::atoi(argv[1]); ++number) callers.emplace_back(repeat, std::atoi(argv[2]));
    repeat(std::atoi(argv[2]));
    for (std::thread& caller : callers) caller.join();
    std::printf("%d\n", wrong.load());
    std::fflush(stdout);
    std::_Exit(wrong.load() != 0);  // the pool's threads go on
}

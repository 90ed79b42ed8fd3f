// Runs many jobs on a Team with as many helpers as argv[1] says, and checks that each index of each job was computed once, by a
// function of that job. Helpers come late, and some of the indices take longer than others.
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "team.hpp"

struct Job {
    std::vector<std::atomic<int>> seen;
    uint32_t seed;
    explicit Job(size_t count, uint32_t number) : seen(count), seed(number) {}
};

static void work(void* user, size_t index) {
    Job& job = *static_cast<Job*>(user);
    for (volatile uint32_t wait = (job.seed * 2654435761u + static_cast<uint32_t>(index)) % 512; wait;) wait = wait - 1;
    job.seen.at(index).fetch_add(1);
}

int main(int, char** argv) {
    const int helpers = std::atoi(argv[1]), jobs = std::atoi(argv[2]);
    edgedec::Team team(static_cast<size_t>(helpers) + 1);
    std::vector<std::thread> threads;
    int wrong = 0;
    for (int number = 0; number < jobs; ++number) {
        if (number % 50 == 10 && static_cast<int>(threads.size()) < helpers + 2)  // two more than the team has members
            threads.emplace_back([&team] { team.help(); });
        const auto seed = static_cast<uint32_t>(number);
        Job job(seed * 7919 % 97, seed);
        team.run(work, job.seen.size(), &job);
        for (const auto& count : job.seen) wrong += count.load() != 1;
    }
    team.end();
    for (std::thread& thread : threads) thread.join();
    std::printf("%d\n", wrong);
    return wrong != 0;
}

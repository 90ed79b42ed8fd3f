// Runs many jobs on a Team with as many helpers as argv[1] says, and checks that each index of each job was computed once, by a
// function of that job. Helpers come late, and some of the indices take longer than others. At the end each helper is asked once
// for the weights of a later job.
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "operators/team.hpp"

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

class Later final : public edgedec::Upcoming {
  public:
    mutable std::atomic<int> calls{0}, wrong{0};

    edgedec::Weights weights(size_t member, size_t members) const override {
        if (!member || member >= members) wrong.fetch_add(1);
        calls.fetch_add(1);
        return {bytes_ + member, sizeof bytes_ - member};
    }

  private:
    const uint8_t bytes_[1000] = {};
};

int main(int, char** argv) {
    const int helpers = std::atoi(argv[1]), jobs = std::atoi(argv[2]);
    edgedec::Team team(static_cast<size_t>(helpers) + 1);
    std::vector<std::thread> threads;
    const Later later[2];
    int wrong = 0;
    for (int number = 0; number < jobs; ++number) {
        if (number % 50 == 10 && static_cast<int>(threads.size()) < helpers + 2)  // two more than the team has members
            threads.emplace_back([&team] { team.help(); });
        const auto seed = static_cast<uint32_t>(number);
        Job job(seed * 7919 % 97, seed);
        team.expect(number % 3 ? nullptr : &later[0]);
        team.rest(number % 5 == 0);  // the helpers may sleep when the job comes
        team.run(work, job.seen.size(), &job);
        for (const auto& count : job.seen) wrong += count.load() != 1;
    }
    team.expect(&later[1]);
    while (later[1].calls.load() < helpers) std::this_thread::yield();
    team.end();
    for (std::thread& thread : threads) thread.join();
    wrong += later[0].wrong.load() + later[1].wrong.load() + (later[1].calls.load() != helpers);
    std::printf("%d\n", wrong);
    return wrong != 0;
}

import unittest

from queue_of_jobs import Jobs


class TestQueueOfJobs(unittest.TestCase):
    def test_priority(self):
        jobs = Jobs()
        jobs.add(2, 'b')
        jobs.add(1, 'a')
        self.assertEqual(jobs.take(), 'a')

    def test_order(self):
        jobs = Jobs()
        jobs.add(1, 'z')
        jobs.add(1, 'a')
        self.assertEqual(jobs.take(), 'z')


if __name__ == "__main__":
    unittest.main()
